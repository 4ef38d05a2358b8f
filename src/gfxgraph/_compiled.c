/* What each replay does and Python takes long for. Optional: without it graph/words.py uses NumPy, or
 * asks torch of each argument, device/gpu.py uses ctypes, and torch copies to several places. Only the
 * stable interface of Python is used, nothing of torch or CUDA. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

/* Takes an address out of an argument: 0 on success. ("K" would wrap what is too large.) */
static int as_address(PyObject *item, uint64_t *address)
{
    *address = PyLong_AsUnsignedLongLong(item);
    return PyErr_Occurred() ? -1 : 0;
}

/* Words: compares words of memory, as graph/words.py describes them. */

typedef struct {
    uint64_t at, expected;
} Word;

typedef struct {
    PyObject_HEAD
    Py_ssize_t count;
    Word *words;
} Words;

#define AT_ONCE 4

/* So many words ahead memory is asked for, which the launch of a large graph has driven out of the
 * caches. Words come in the order of addresses, so two of four meet almost each line of a cache. */
#define AHEAD 256
#ifdef __GNUC__
#define FETCH(word) __builtin_prefetch((const void *)(uintptr_t)(word)->at)
#else
#define FETCH(word) (void)(word)
#endif

static uint64_t differs(const Word *word)
{
    return *(const volatile uint64_t *)(uintptr_t)word->at ^ word->expected;
}

/* In order, and no further than the first four where one differs: what a pointer leads to is read
 * only after the pointer was compared. (To fetch reads nothing, and may go anywhere.) No other
 * thread runs Python in between. */
static int compare(const Words *words)
{
    const Word *end = words->words + words->count;
    for (const Word *word = words->words; word < end; word += AT_ONCE) {
        if (end - word > AHEAD) {
            FETCH(word + AHEAD);
            FETCH(word + AHEAD + 2);
        }
        if (differs(word) | differs(word + 1) | differs(word + 2) | differs(word + 3))
            return 0;
    }
    return 1;
}

static PyObject *words_same(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(compare((const Words *)self));
}

/* The helper: a thread that compares words while another one launches a graph. It asks nothing of
 * Python. Who has asked it keeps Python's lock and the words until it is done, so no other thread runs
 * Python in between, and all but `state` and `is_awake` is read and written by one thread at a time. */
typedef int (*GraphLaunch)(uint64_t executable, uint64_t stream);

enum { NOTHING, WANTED, TAKEN };

static struct {
    PyThread_type_lock wakes; /* it sleeps until this is released */
    PyThread_type_lock ends;  /* it releases this when it has compared what it has taken */
    pid_t process;            /* where it runs: none of it is left in a child of fork() */
    atomic_int is_awake;      /* or will be */
    atomic_int state;
    const Words *words; /* of the call that goes on */
    int same;
} helper;

static void help(void *unused)
{
    (void)unused;
    for (;;) {
        int wanted = WANTED;
        PyThread_acquire_lock(helper.wakes, WAIT_LOCK);
        atomic_store(&helper.is_awake, 0);
        if (atomic_compare_exchange_strong(&helper.state, &wanted, TAKEN)) {
            helper.same = compare(helper.words);
            PyThread_release_lock(helper.ends);
        }
    }
}

/* Whether there is one in this process; it is started when it is first asked for. */
static int has_helper(void)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    sigset_t all, before;
    unsigned long thread;

    if (helper.process == getpid())
        return helper.ends != NULL;
    helper.process = getpid();
    atomic_store(&helper.is_awake, 0);
    atomic_store(&helper.state, NOTHING);
    helper.words = NULL;
    helper.ends = NULL;
    helper.wakes = PyThread_allocate_lock();
    if (helper.wakes == NULL || (helper.ends = PyThread_allocate_lock()) == NULL)
        return 0;
    PyThread_acquire_lock(helper.wakes, WAIT_LOCK);
    PyThread_acquire_lock(helper.ends, WAIT_LOCK);
    /* Signals are for the threads of the program. */
    sigfillset(&all);
    for (size_t n = 0; n < sizeof faults / sizeof *faults; n++)
        sigdelset(&all, faults[n]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread = PyThread_start_new_thread(help, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (thread == (unsigned long)-1) {
        PyThread_free_lock(helper.ends);
        helper.ends = NULL;
    }
    return helper.ends != NULL;
}

/* Python's lock is held all the time: what another thread frees while the graph is launched could be
 * found by no comparison before its end. */
static PyObject *words_beside(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    const Words *words = (const Words *)self;
    uint64_t given[3]; /* the function that launches, the graph, and the stream */
    const pid_t process = getpid();
    int status, same, wanted = WANTED;

    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "beside() takes a function, a graph and a stream");
        return NULL;
    }
    for (int n = 0; n < 3; n++)
        if (as_address(args[n], &given[n]))
            return NULL;
    if (given[0] == 0) {
        PyErr_SetString(PyExc_ValueError, "expected the address of a function, got 0");
        return NULL;
    }
    if (!has_helper() || helper.words != NULL) { /* the launch of another call runs Python */
        status = ((GraphLaunch)(uintptr_t)given[0])(given[1], given[2]);
        same = compare(words);
    } else {
        helper.words = words;
        atomic_store(&helper.state, WANTED);
        if (!atomic_exchange(&helper.is_awake, 1))
            PyThread_release_lock(helper.wakes);
        status = ((GraphLaunch)(uintptr_t)given[0])(given[1], given[2]);
        if (getpid() != process || atomic_compare_exchange_strong(&helper.state, &wanted, NOTHING))
            same = compare(words); /* it has not come to it, or this is a child of the launch */
        else {
            PyThread_acquire_lock(helper.ends, WAIT_LOCK);
            same = helper.same;
            atomic_store(&helper.state, NOTHING);
        }
        helper.words = NULL;
    }
    return Py_BuildValue("(iO)", status, same ? Py_True : Py_False);
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
    if (size % (Py_ssize_t)(AT_ONCE * sizeof(Word)) != 0) {
        PyErr_SetString(PyExc_ValueError,
                        "expected pairs of words (an address, what stands there), by the four");
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
    {"beside", (PyCFunction)(void (*)(void))words_beside, METH_FASTCALL,
     "What CUDA says when it launches a graph (the address of its function, the graph, the "
     "stream), and whether each word stands where it stood, which another thread looks at meanwhile."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot words_slots[] = {
    {Py_tp_doc, "Pairs of an address and the word that stood there, as the bytes of 64-bit words. "
                "Four are read at a time."},
    {Py_tp_new, words_new},
    {Py_tp_dealloc, words_dealloc},
    {Py_tp_methods, words_methods},
    {0, NULL},
};

static PyType_Spec words_spec = {
    "gfxgraph._compiled.Words", sizeof(Words), 0, Py_TPFLAGS_DEFAULT, words_slots,
};

/* Kinds: compares what lies in tensors, as question_of_kinds() in graph/words.py describes it. */

typedef struct {
    uint64_t at, expected, noise; /* noise: bits that say nothing */
} Part;

typedef struct {
    PyTypeObject *type;
    Py_ssize_t first, end; /* of its parts */
    int is_asked;
} Kind;

typedef struct {
    PyObject_HEAD
    Py_ssize_t inner, keys, count, asked, places;
    uint64_t nested;
    Kind *kinds;
    Part *parts;
    PyObject **seen;
    PyObject *some, *all;
} Kinds;

/* Nothing is read of an object before its type was compared, and no tensor is read elsewhere than
 * where every tensor of C++ has words. No other thread runs Python in between. */
static int kinds_same(const Kinds *self, PyObject *const *args)
{
    memset(self->seen, 0, (size_t)self->places * sizeof(PyObject *));
    for (Py_ssize_t n = 0; n < self->count; n++) {
        PyObject *item = args[n];
        const Kind *kind = &self->kinds[n];
        const char *inner;
        uint64_t different;
        Py_ssize_t at = (Py_ssize_t)((uintptr_t)item >> 4) & (self->places - 1);

        for (; self->seen[at] != NULL; at = (at + 1) & (self->places - 1))
            if (self->seen[at] == item)
                return 0; /* one object twice */
        self->seen[at] = item;
        if (Py_TYPE(item) != kind->type)
            return 0;
        inner = *(const char *const *)((const char *)item + self->inner);
        if (inner == NULL)
            return 0;
        different = 0;
        for (const Part *part = self->parts + kind->first; part < self->parts + kind->end; part++)
            different |= (*(const volatile uint64_t *)(inner + part->at) ^ part->expected) &
                         ~part->noise;
        if (different)
            return 0;
    }
    return 1;
}

/* Torch's own guards end the process where a tensor is nested: it has no strides. They look at no
 * object of another type. */
static int kinds_nested(const Kinds *self, PyObject *const *args, Py_ssize_t count)
{
    for (Py_ssize_t n = 0; n < count && n < self->count; n++)
        if (Py_TYPE(args[n]) == self->kinds[n].type) {
            const char *inner = *(const char *const *)((const char *)args[n] + self->inner);
            if (inner != NULL && *(const volatile uint64_t *)(inner + self->keys) & self->nested)
                return 1;
        }
    return 0;
}

static PyObject *kinds_check(PyObject *item, PyObject *const *args, Py_ssize_t count)
{
    const Kinds *self = (const Kinds *)item;
    const int is_same = count == self->count && kinds_same(self, args);
    PyObject *answer, *given;

    if (!is_same && kinds_nested(self, args, count))
        Py_RETURN_FALSE;
    given = PyTuple_New(is_same ? self->asked : count);
    if (given == NULL)
        return NULL;
    for (Py_ssize_t n = 0, to = 0; n < count; n++)
        if (!is_same || self->kinds[n].is_asked) {
            Py_INCREF(args[n]);
            PyTuple_SetItem(given, to++, args[n]); /* there is room for it */
        }
    answer = PyObject_Call(is_same ? self->some : self->all, given, NULL);
    Py_DECREF(given);
    return answer;
}

/* Takes three words a kind: its type, whether it is asked, how many parts it has. */
static int kinds_fill(Kinds *self, const uint64_t *heads, Py_ssize_t parts)
{
    Py_ssize_t first = 0;
    for (Py_ssize_t n = 0; n < self->count; n++, heads += 3) {
        if (heads[2] > (uint64_t)(parts - first))
            return -1;
        self->kinds[n].type = (PyTypeObject *)(uintptr_t)heads[0];
        self->kinds[n].is_asked = heads[1] != 0;
        self->kinds[n].first = first;
        self->kinds[n].end = first += (Py_ssize_t)heads[2];
        self->asked += heads[1] != 0;
    }
    return first == parts ? 0 : -1;
}

static PyObject *kinds_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    const char *heads, *parts;
    Py_ssize_t inner, keys, size_of_heads, size_of_parts;
    unsigned long long nested;
    PyObject *some, *all;
    Kinds *self;

    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Kinds() takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "nnKy#y#OO:Kinds", &inner, &keys, &nested, &heads, &size_of_heads,
                          &parts, &size_of_parts, &some, &all))
        return NULL;
    self = (Kinds *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    Py_INCREF(some);
    Py_INCREF(all);
    self->some = some;
    self->all = all;
    self->inner = inner;
    self->keys = keys;
    self->nested = nested;
    self->count = size_of_heads / (Py_ssize_t)(3 * sizeof(uint64_t));
    for (self->places = 4; self->places < 2 * self->count; self->places *= 2)
        ;
    self->kinds = PyMem_Calloc((size_t)self->count + 1, sizeof(Kind));
    self->seen = PyMem_Calloc((size_t)self->places, sizeof(PyObject *));
    self->parts = PyMem_Malloc(size_of_parts ? (size_t)size_of_parts : 1);
    if (self->kinds == NULL || self->seen == NULL || self->parts == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    memcpy(self->parts, parts, (size_t)size_of_parts);
    if (size_of_heads % (Py_ssize_t)(3 * sizeof(uint64_t)) != 0 ||
        size_of_parts % (Py_ssize_t)sizeof(Part) != 0 ||
        kinds_fill(self, (const uint64_t *)(const void *)heads,
                   size_of_parts / (Py_ssize_t)sizeof(Part)) < 0) {
        Py_DECREF(self);
        PyErr_SetString(PyExc_ValueError, "expected three words a kind, and as many parts as they say");
        return NULL;
    }
    return (PyObject *)self;
}

static void kinds_dealloc(PyObject *item)
{
    PyTypeObject *type = Py_TYPE(item);
    Kinds *self = (Kinds *)item;
    PyMem_Free(self->kinds);
    PyMem_Free(self->seen);
    PyMem_Free(self->parts);
    Py_XDECREF(self->some);
    Py_XDECREF(self->all);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(item);
    Py_DECREF(type);
}

static PyMethodDef kinds_methods[] = {
    {"check", (PyCFunction)(void (*)(void))kinds_check, METH_FASTCALL,
     "Whether tensors are of these kinds and all different."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot kinds_slots[] = {
    {Py_tp_doc, "Where the tensor of C++ stands in that of Python, and its dispatch keys in there; "
                "which of these a nested tensor has; three words a kind (its type, "
                "whether some() is asked, how many parts); the parts (an offset in there, the word "
                "at it, bits of it that say nothing); what is asked if all words are the same; what "
                "if they are not."},
    {Py_tp_new, kinds_new},
    {Py_tp_dealloc, kinds_dealloc},
    {Py_tp_methods, kinds_methods},
    {0, NULL},
};

static PyType_Spec kinds_spec = {
    "gfxgraph._compiled.Kinds", sizeof(Kinds), 0, Py_TPFLAGS_DEFAULT, kinds_slots,
};

/* Copy: a call of the driver that copies memory of a fixed size. */

typedef int (*Driver)(uint64_t to, uint64_t at, size_t size, uint64_t stream);

typedef struct {
    PyObject_HEAD
    Driver driver;
    size_t size;
} Copy;

static PyObject *copy_start(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    const Copy *copy = (const Copy *)self;
    uint64_t given[3]; /* to, at, stream */
    int status;

    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "start() takes two addresses and a stream");
        return NULL;
    }
    for (int n = 0; n < 3; n++)
        if (as_address(args[n], &given[n]))
            return NULL;
    /* Other threads may run meanwhile: it waits where the queue of the device is full. */
    Py_BEGIN_ALLOW_THREADS
    status = copy->driver(given[0], given[1], copy->size, given[2]);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(status);
}

static PyObject *copy_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *of_driver, *of_size;
    uint64_t driver, size;
    Copy *self;

    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Copy() takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OO:Copy", &of_driver, &of_size) || as_address(of_driver, &driver) ||
        as_address(of_size, &size))
        return NULL;
    if (driver == 0) {
        PyErr_SetString(PyExc_ValueError, "expected the address of a function, got 0");
        return NULL;
    }
    self = (Copy *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    self->driver = (Driver)(uintptr_t)driver;
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
     "Copy to an address, from an address, on a stream; gives what the driver says."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot copy_slots[] = {
    {Py_tp_doc, "A function of the driver (by its address), and how many bytes it copies."},
    {Py_tp_new, copy_new},
    {Py_tp_dealloc, copy_dealloc},
    {Py_tp_methods, copy_methods},
    {0, NULL},
};

static PyType_Spec copy_spec = {
    "gfxgraph._compiled.Copy", sizeof(Copy), 0, Py_TPFLAGS_DEFAULT, copy_slots,
};

/* Copies: a kernel that copies to several places at once, as device/gpu_copies.py describes it. */

#define MOST 120
#define THREADS 256
#define BY_BLOCK 16384 /* bytes */

typedef struct {
    uint64_t to, at, size;
    uint32_t first; /* its first block */
    uint32_t unused;
} Piece;

typedef int (*Launch)(void *kernel, unsigned x, unsigned y, unsigned z, unsigned by_x, unsigned by_y,
                      unsigned by_z, unsigned shared, void *stream, void **given, void **more);

typedef struct {
    PyObject_HEAD
    Launch launch;
    void *kernel;
    uint32_t count, blocks;
    Piece pieces[MOST];
} Copies;

static PyObject *copies_start(PyObject *item, PyObject *const *args, Py_ssize_t count)
{
    Copies *self = (Copies *)item;
    Piece pieces[MOST]; /* other threads may begin as well */
    void *given[] = {pieces, &self->count};
    uint64_t stream;
    int status;

    if (count != (Py_ssize_t)self->count + 1) {
        PyErr_Format(PyExc_TypeError, "start() takes a stream and %u addresses", (unsigned)self->count);
        return NULL;
    }
    if (as_address(args[0], &stream))
        return NULL;
    memcpy(pieces, self->pieces, sizeof(pieces));
    for (uint32_t n = 0; n < self->count; n++) {
        if (as_address(args[n + 1], &pieces[n].at))
            return NULL;
        if (pieces[n].at % 16 && pieces[n].size >= 16)
            return PyLong_FromLong(-1);
    }
    /* Other threads may run meanwhile: it waits where the queue of the device is full. */
    Py_BEGIN_ALLOW_THREADS
    status = self->launch(self->kernel, self->blocks, 1, 1, THREADS, 1, 1, 0,
                          (void *)(uintptr_t)stream, given, NULL);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(status);
}

/* Takes two words a place: its address and how many bytes. */
static int copies_fill(Copies *self, const uint64_t *places)
{
    uint64_t blocks = 0;
    for (uint32_t n = 0; n < self->count; n++, places += 2) {
        Piece *piece = &self->pieces[n];
        piece->to = places[0];
        piece->size = places[1];
        piece->first = (uint32_t)blocks;
        if (piece->to % 16 || piece->size == 0 || piece->size > (uint64_t)INT32_MAX * BY_BLOCK)
            return -1;
        blocks += (piece->size + BY_BLOCK - 1) / BY_BLOCK;
        if (blocks > INT32_MAX)
            return -1;
    }
    self->blocks = (uint32_t)blocks;
    return 0;
}

static PyObject *copies_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *of_launch, *of_kernel;
    uint64_t launch, kernel;
    const char *places;
    Py_ssize_t size;
    Copies *self;

    if (kwargs != NULL && PyDict_Size(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Copies() takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OOy#:Copies", &of_launch, &of_kernel, &places, &size) ||
        as_address(of_launch, &launch) || as_address(of_kernel, &kernel))
        return NULL;
    if (launch == 0 || kernel == 0) {
        PyErr_SetString(PyExc_ValueError, "expected the addresses of a function and a kernel, got 0");
        return NULL;
    }
    self = (Copies *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    self->launch = (Launch)(uintptr_t)launch;
    self->kernel = (void *)(uintptr_t)kernel;
    self->count = (uint32_t)(size / (Py_ssize_t)(2 * sizeof(uint64_t)));
    if (size == 0 || size % (Py_ssize_t)(2 * sizeof(uint64_t)) != 0 || self->count > MOST ||
        copies_fill(self, (const uint64_t *)(const void *)places) < 0) {
        Py_DECREF(self);
        PyErr_SetString(PyExc_ValueError, "expected 1 to 120 pairs of words: an address, a multiple "
                                          "of 16, and how many bytes");
        return NULL;
    }
    return (PyObject *)self;
}

static void copies_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef copies_methods[] = {
    {"start", (PyCFunction)(void (*)(void))copies_start, METH_FASTCALL,
     "Copy on a stream, from as many addresses; gives what the driver says, -1: one of them is no "
     "multiple of 16."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot copies_slots[] = {
    {Py_tp_doc, "The function of the driver that launches kernels, the kernel, and as pairs of words "
                "the places to copy to: an address, how many bytes."},
    {Py_tp_new, copies_new},
    {Py_tp_dealloc, copies_dealloc},
    {Py_tp_methods, copies_methods},
    {0, NULL},
};

static PyType_Spec copies_spec = {
    "gfxgraph._compiled.Copies", sizeof(Copies), 0, Py_TPFLAGS_DEFAULT, copies_slots,
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
    if (add(module, "Words", &words_spec) < 0 || add(module, "Kinds", &kinds_spec) < 0)
        return -1;
    if (add(module, "Copy", &copy_spec) < 0)
        return -1;
    return add(module, "Copies", &copies_spec);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)module_exec}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_compiled", "See its source.", 0, NULL, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__compiled(void)
{
    return PyModuleDef_Init(&module);
}
