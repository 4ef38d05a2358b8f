/* What each replay does and Python takes long for. Optional: without it graph/words.py uses NumPy, and
 * device/gpu.py ctypes. Only the stable interface of Python is used, nothing of torch or CUDA. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Words: compares words of memory, as graph/words.py describes them. */

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
    "gfxgraph._compiled.Words", sizeof(Words), 0, Py_TPFLAGS_DEFAULT, words_slots,
};

/* Copy: a call of the driver that copies memory into a static input. */

typedef int (*Driver)(uint64_t to, uint64_t at, size_t size, uint64_t stream);

typedef struct {
    PyObject_HEAD
    Driver driver;
    uint64_t to;
    size_t size;
} Copy;

static PyObject *copy_start(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    const Copy *copy = (const Copy *)self;
    uint64_t at, stream;
    int status;

    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "start() takes an address and a stream");
        return NULL;
    }
    at = PyLong_AsUnsignedLongLong(args[0]);
    if (PyErr_Occurred())
        return NULL;
    stream = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    /* Other threads may run meanwhile: it waits where the queue of the device is full. */
    Py_BEGIN_ALLOW_THREADS
    status = copy->driver(copy->to, at, copy->size, stream);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(status);
}

static PyObject *copy_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    unsigned long long driver, to, size;
    Copy *self;

    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Copy() takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "KKK:Copy", &driver, &to, &size))
        return NULL;
    if (driver == 0) {
        PyErr_SetString(PyExc_ValueError, "expected the address of a function, got 0");
        return NULL;
    }
    self = (Copy *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    self->driver = (Driver)(uintptr_t)driver;
    self->to = to;
    self->size = (size_t)size;
    return (PyObject *)self;
}

static void copy_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef copy_methods[] = {
    {"start", (PyCFunction)(void (*)(void))copy_start, METH_FASTCALL,
     "Copy from an address, on a stream; gives what the driver says."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot copy_slots[] = {
    {Py_tp_doc, "A function of the driver (by its address), where it copies to, how many bytes."},
    {Py_tp_new, copy_new},
    {Py_tp_dealloc, copy_dealloc},
    {Py_tp_methods, copy_methods},
    {0, NULL},
};

static PyType_Spec copy_spec = {
    "gfxgraph._compiled.Copy", sizeof(Copy), 0, Py_TPFLAGS_DEFAULT, copy_slots,
};

static int add(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL)
        return -1;
    if (PyModule_AddObject(module, name, type) < 0) {
        Py_DECREF(type);
        return -1;
    }
    return 0;
}

static int module_exec(PyObject *module)
{
    return add(module, "Words", &words_spec) < 0 ? -1 : add(module, "Copy", &copy_spec);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)module_exec}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_compiled", "See its source.", 0, NULL, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__compiled(void)
{
    return PyModuleDef_Init(&module);
}
