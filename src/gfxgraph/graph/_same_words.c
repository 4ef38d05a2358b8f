/* Compares words of memory, as words.py describes them: its question() without NumPy, which gathers
 * them into arrays first. Optional: only the stable interface of Python is used, nothing of torch. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t at, expected;
} Word;

typedef struct {
    PyObject_HEAD
    Py_ssize_t count;
    Word *words;
} Words;

/* In order, and no further than the first that differs: what a pointer leads to is read only after
 * the pointer was compared. No other thread runs Python in between. */
static PyObject *words_same(PyObject *self, PyObject *unused)
{
    const Words *words = (const Words *)self;
    (void)unused;
    for (Py_ssize_t n = 0; n < words->count; n++) {
        const Word word = words->words[n];
        if (*(const volatile uint64_t *)(uintptr_t)word.at != word.expected)
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

static PyObject *words_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    const char *data;
    Py_ssize_t size;
    Words *self;

    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Words() takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "y#:Words", &data, &size))
        return NULL;
    if (size % (Py_ssize_t)sizeof(Word) != 0) {
        PyErr_SetString(PyExc_ValueError, "expected pairs of words: an address, what stands there");
        return NULL;
    }
    self = (Words *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    self->words = PyMem_Malloc(size ? (size_t)size : 1);
    if (self->words == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    memcpy(self->words, data, (size_t)size);
    self->count = size / (Py_ssize_t)sizeof(Word);
    return (PyObject *)self;
}

static void words_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(((Words *)self)->words);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef words_methods[] = {
    {"same", words_same, METH_NOARGS, "Whether each word stands where it stood."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot words_slots[] = {
    {Py_tp_doc, "Pairs of an address and the word that stood there, as the bytes of 64-bit words."},
    {Py_tp_new, words_new},
    {Py_tp_dealloc, words_dealloc},
    {Py_tp_methods, words_methods},
    {0, NULL},
};

static PyType_Spec words_spec = {
    "gfxgraph.graph._same_words.Words", sizeof(Words), 0, Py_TPFLAGS_DEFAULT, words_slots,
};

static int module_exec(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&words_spec);
    if (type == NULL)
        return -1;
    if (PyModule_AddObject(module, "Words", type) < 0) {
        Py_DECREF(type);
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)module_exec}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_same_words", "See words.py.", 0, NULL, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__same_words(void)
{
    return PyModuleDef_Init(&module);
}
