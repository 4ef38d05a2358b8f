/* Stands for the drivers of CUDA and HIP, as far as they tell of graphs.

   Graph 1: a kernel, then a memcpy and a memset side by side, a child graph (graph 2), an
   allocation, a host function. Graph 2: a kernel. Stream 5 captures into graph 1; its next node
   waits for the host function. Streams and graphs are numbers in place of pointers.

   Graph 8 is one that was made here: its nodes are 81, 82 ..., its executable is 9. calls() tells what
   was done to graphs and executables, a line each.

   misbehave(name, how) changes the functions of that name from now on, with how above 0 they return
   it as an error; for HIP also NULL_HANDLES, MORE (they tell of more than there is), 0: no more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { NULL_HANDLES = -1, MORE = -2 };

static struct { char name[64]; int how; } faults[16];

void misbehave(const char *name, int how) {
  size_t n = 0;
  while (n + 1 < COUNT(faults) && faults[n].name[0] && strcmp(faults[n].name, name)) n++;
  snprintf(faults[n].name, sizeof faults[n].name, "%s", name);
  faults[n].how = how;
}

static int fault(const char *name) {
  for (size_t n = 0; n < COUNT(faults); n++)
    if (strcmp(faults[n].name, name) == 0) return faults[n].how;
  return 0;
}

/* The first line of a function that may return an error on demand. */
#define MAY_FAIL \
  const int how = fault(__func__); \
  if (how > 0) return how

static const uintptr_t nodes[] = {11, 12, 13, 14, 15, 16}, of_child[] = {21};
static const uintptr_t from[] = {11, 11, 12, 13, 14, 15}, to[] = {12, 13, 14, 14, 15, 16};

static int get_nodes(uintptr_t graph, uintptr_t *out, size_t *count) {
  const uintptr_t *found = graph == 1 ? nodes : of_child;
  size_t size = graph == 1 ? COUNT(nodes) : COUNT(of_child);
  if (graph > 2) return 1;
  for (size_t n = 0; out && n < *count; n++) out[n] = n < size ? found[n] : 0;
  *count = size;
  return 0;
}

static int get_edges(uintptr_t graph, uintptr_t *first, uintptr_t *second, size_t *count) {
  size_t size = graph == 1 ? COUNT(from) : 0;
  for (size_t n = 0; first && n < *count && n < size; n++) first[n] = from[n], second[n] = to[n];
  *count = size;
  return 0;
}

static int get_type(uintptr_t node, int *type) {
  static const int types[] = {0, 1, 2, 4, 10, 3};
  *type = node == 21 ? 0 : types[node - 11];
  return 0;
}

static int capture_info(uintptr_t stream, int *status, uint64_t *id, uintptr_t *graph,
                        const uintptr_t **waits_for, size_t *count) {
  *status = stream == 5 ? 1 : stream == 7 ? 2 : 0; /* 7: a capture that an error has ended */
  if (*status == 1) *id = 9, *graph = 1, *waits_for = &nodes[5], *count = 1;
  return 0;
}

/* HIP, by hip_runtime_api.h. */

typedef struct { unsigned x, y, z; } dim3;
struct hip_kernel { dim3 block; void **extra; const void *func; dim3 grid; void **params; unsigned shared; };
struct hip_memset { void *dst; unsigned element; size_t height, pitch; unsigned value; size_t width; };
struct hip_end { void *array; size_t x, y, z; void *pointer; size_t pitch, width, height; };
struct hip_memcpy { struct hip_end src, dst; size_t width, height, depth; int kind; };

int hipRuntimeGetVersion(int *version) { MAY_FAIL; *version = 70251831; return 0; }
int hipGraphGetNodes(uintptr_t g, uintptr_t *out, size_t *n) {
  MAY_FAIL;
  size_t asked = *n;
  int error = get_nodes(g, out, n);
  for (size_t i = 0; how == NULL_HANDLES && out && i < asked; i++) out[i] = 0;
  if (how == MORE && out) *n += 3;
  return error;
}
int hipGraphGetEdges(uintptr_t g, uintptr_t *a, uintptr_t *b, size_t *n) {
  MAY_FAIL;
  size_t asked = *n;
  int error = get_edges(g, a, b, n);
  if (how == MORE && a && asked) b[0] = 99; /* no node of this graph */
  for (size_t i = 0; how == NULL_HANDLES && a && i < asked; i++) b[i] = 0;
  return error;
}
int hipGraphNodeGetType(uintptr_t node, int *type) { MAY_FAIL; return get_type(node, type); }
int hipGraphChildGraphNodeGetGraph(uintptr_t node, uintptr_t *graph) {
  MAY_FAIL;
  *graph = how == NULL_HANDLES ? 0 : 2;
  return 0;
}
int hipStreamGetCaptureInfo_v2(uintptr_t s, int *status, unsigned long long *id, uintptr_t *g,
                               const uintptr_t **nodes, size_t *n) {
  MAY_FAIL;
  int error = capture_info(s, status, (uint64_t *)id, g, nodes, n);
  if (how == NULL_HANDLES) *nodes = 0;
  if (how == MORE) *n = 1000000;
  return error;
}
int hipGraphKernelNodeGetParams(uintptr_t node, struct hip_kernel *out) {
  MAY_FAIL;
  *out = (struct hip_kernel){{128, 1, 1}, 0, (void *)(node == 11 ? 0x77 : 0x78), {3, 2, 1}, 0, 64};
  return 0;
}
int hipGraphMemsetNodeGetParams(uintptr_t node, struct hip_memset *out) {
  *out = (struct hip_memset){(void *)1, 4, 1, 0, 7, 256};
  return 0;
}
int hipGraphMemcpyNodeGetParams(uintptr_t node, struct hip_memcpy *out) {
  memset(out, 0, sizeof *out);
  out->width = 4096, out->height = out->depth = 1, out->kind = 1;
  return 0;
}
const char *hipKernelNameRefByPtr(const void *function, void *stream) {
  return function == (void *)0x77 ? "_ZN2at6native4waitIfEEvT_" : 0; /* 0x78: of a module */
}

/* CUDA, by cuda.h. */

struct cu_kernel {
  void *func;
  unsigned grid[3], block[3], shared;
  void **params, **extra, *kernel, *context;
};
struct cu_memset { uintptr_t dst; size_t pitch; unsigned value, element; size_t width, height; };
struct cu_end { size_t x, y, z, lod; int type; void *host; uintptr_t device; void *array, *reserved; size_t pitch, height; };
struct cu_memcpy { struct cu_end src, dst; size_t width, height, depth; };

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { MAY_FAIL; *version = 13000; return 0; }
int cuGraphGetNodes(uintptr_t g, uintptr_t *out, size_t *n) { return get_nodes(g, out, n); }
int cuGraphGetEdges(uintptr_t g, uintptr_t *a, uintptr_t *b, size_t *n) { return get_edges(g, a, b, n); }
int cuGraphGetEdges_v2(uintptr_t g, uintptr_t *a, uintptr_t *b, void *data, size_t *n) { return get_edges(g, a, b, n); }
int cuGraphNodeGetType(uintptr_t node, int *type) { return get_type(node, type); }
int cuGraphChildGraphNodeGetGraph(uintptr_t node, uintptr_t *graph) { *graph = 2; return 0; }
int cuStreamGetCaptureInfo_v2(uintptr_t s, int *status, uint64_t *id, uintptr_t *g,
                              const uintptr_t **nodes, size_t *n) {
  return capture_info(s, status, id, g, nodes, n);
}
int cuStreamGetCaptureInfo_v3(uintptr_t s, int *status, uint64_t *id, uintptr_t *g,
                              const uintptr_t **nodes, const void **data, size_t *n) {
  static const char no_data[64];
  if (data) *data = no_data;
  return capture_info(s, status, id, g, nodes, n);
}
int cuGraphKernelNodeGetParams_v2(uintptr_t node, struct cu_kernel *out) {
  /* A kernel of a library that is loaded late has no function. */
  *out = (struct cu_kernel){(void *)(node == 11 ? 0x77L : 0L), {3, 2, 1}, {128, 1, 1}, 64};
  out->kernel = (void *)(node == 11 ? 0L : 0x78L);
  return 0;
}
int cuFuncGetName(const char **name, void *function) { *name = "_ZN2at6native4waitIfEEvT_"; return 0; }
int cuKernelGetName(const char **name, void *kernel) { *name = "late_kernel"; return 0; }
int cuFuncGetParamInfo(void *function, size_t n, size_t *offset, size_t *size) {
  *offset = 8 * n, *size = 8 + n;
  return n < 3 ? 0 : 1;
}
int cuKernelGetParamInfo(void *kernel, size_t n, size_t *offset, size_t *size) {
  *offset = 0, *size = 4;
  return n < 1 ? 0 : 1;
}
int cuGraphMemsetNodeGetParams(uintptr_t node, struct cu_memset *out) {
  *out = (struct cu_memset){1, 0, 7, 4, 256, 1};
  return 0;
}
int cuGraphMemcpyNodeGetParams_v2(uintptr_t node, struct cu_memcpy *out) {
  memset(out, 0, sizeof *out);
  out->src.type = 1, out->dst.type = 2, out->width = 4096, out->height = out->depth = 1;
  return 0;
}
int cuGraphMemAllocNodeGetParams(uintptr_t node, char *out) {
  const size_t size = 2048; /* after the properties of the pool, and two words of access */
  memset(out, 0, 120);
  memcpy(out + 104, &size, sizeof size);
  return 0;
}
static char done[4096];

const char *calls(void) { return done; }

#define DONE(...) \
  do { \
    size_t end = strlen(done); \
    snprintf(done + end, sizeof done - end, __VA_ARGS__); \
  } while (0)

int cuGraphCreate(uintptr_t *graph, unsigned flags) { MAY_FAIL; DONE("create 8\n"); *graph = 8; return 0; }
int cuGraphAddChildGraphNode(uintptr_t *node, uintptr_t graph, const uintptr_t *after, size_t count,
                             uintptr_t child) {
  MAY_FAIL;
  static uintptr_t next = 81;
  *node = next++;
  DONE("add %ld: graph %ld after", (long)*node, (long)child);
  for (size_t n = 0; n < count; n++) DONE(" %ld", (long)after[n]);
  DONE("\n");
  return graph == 8 ? 0 : 1;
}
int cuGraphInstantiateWithFlags(uintptr_t *executable, uintptr_t graph, unsigned long long flags) {
  MAY_FAIL;
  DONE("instantiate %ld with %llu\n", (long)graph, flags);
  *executable = 9;
  return 0;
}
struct cu_update { int result; uintptr_t node, from; };
int cuGraphExecUpdate_v2(uintptr_t executable, uintptr_t graph, struct cu_update *info) {
  *info = (struct cu_update){0, 0, 0};
  DONE("update %ld from %ld\n", (long)executable, (long)graph);
  if (fault(__func__) > 0) info->result = 2; /* the topology differs */
  return fault(__func__);
}
int cuGraphExecChildGraphNodeSetParams(uintptr_t executable, uintptr_t node, uintptr_t child) {
  MAY_FAIL;
  DONE("set %ld of %ld to %ld\n", (long)node, (long)executable, (long)child);
  return 0;
}
int cuGraphLaunch(uintptr_t executable, uintptr_t stream) {
  MAY_FAIL;
  DONE("launch %ld on %ld\n", (long)executable, (long)stream);
  return 0;
}
int cuGraphExecDestroy(uintptr_t executable) { MAY_FAIL; DONE("destroy executable %ld\n", (long)executable); return 0; }
int cuGraphDestroy(uintptr_t graph) { MAY_FAIL; DONE("destroy %ld\n", (long)graph); return 0; }

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  static const char *endings[] = {"_v3", "_v2", "WithFlags", ""};
  char full[256];
  *function = 0;
  for (size_t n = 0; n < COUNT(endings) && !*function; n++) {
    if (n == 2 && strcmp(name, "cuGraphInstantiate") != 0) continue;
    if (version < 12030 && n < 2 && strcmp(name, "cuGraphGetEdges") == 0) continue;
    if (version < 12030 && n < 1 && strcmp(name, "cuStreamGetCaptureInfo") == 0) continue;
    snprintf(full, sizeof full, "%s%s", name, endings[n]);
    *function = dlsym(RTLD_DEFAULT, full);
  }
  if (status) *status = *function ? 0 : 1;
  return *function ? 0 : 500;
}
