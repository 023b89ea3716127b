// A stand-in for the CUDA driver that computes nothing: it writes down which thread enqueues what,
// on which stream, and lets other threads run after every kernel that is enqueued. Build:
//   cc -shared -fPIC -o libcuda.so.1 driver.c
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

// The fields of `CUlaunchConfig` that come before the stream.
struct launch {
    unsigned grid[3], block[3], shared;
    void *stream;
};

struct entry {
    uint64_t thread, stream, address;
};

static struct entry entries[65536];
static size_t count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int enqueue(void *stream, uint64_t address)
{
    pthread_mutex_lock(&lock);
    if (count < sizeof entries / sizeof *entries)
        entries[count++] = (struct entry){(uint64_t)pthread_self(), (uint64_t)(uintptr_t)stream, address};
    pthread_mutex_unlock(&lock);
    usleep(2000);
    return 0;
}

// What was enqueued so far, in order: an address where memory was cleared, 0 where a kernel was launched.
size_t mock_entries(struct entry **all)
{
    *all = entries;
    return count;
}

int cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void *stream)
{
    (void)value, (void)bytes;
    return enqueue(stream, address);
}

int cuLaunchKernelEx(const struct launch *launch, void *function, void **params, void **extra)
{
    (void)function, (void)params, (void)extra;
    return enqueue(launch->stream, 0);
}

int cuInit(unsigned flags) { return (void)flags, 0; }
int cuDriverGetVersion(int *version) { return *version = 12080, 0; }
int cuDeviceGetCount(int *devices) { return *devices = 1, 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return (void)device, *bytes = (size_t)1 << 30, 0; }

int cuDeviceGetName(char *name, int length, int device)
{
    (void)device;
    strncpy(name, "a stand-in", (size_t)length);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    switch (attribute) {
    case 75: return *value = 9, 0;  // compute capability, major
    case 76: return *value = 0, 0;  // and minor
    case 97: return *value = 227 * 1024, 0;  // shared memory of a block
    default: return *value = 4, 0;
    }
}

int cuDevicePrimaryCtxRetain(void **context, int device) { return (void)device, *context = entries, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, 0; }
int cuCtxGetCurrent(void **context) { return *context = entries, 0; }
int cuCtxPushCurrent_v2(void *context) { return (void)context, 0; }
int cuCtxPopCurrent_v2(void **context) { return *context = entries, 0; }
int cuStreamCreate(void **stream, unsigned flags) { return (void)flags, *stream = &lock, 0; }
int cuStreamDestroy_v2(void *stream) { return (void)stream, 0; }
int cuModuleLoadData(void **module, const void *image) { return (void)image, *module = entries, 0; }
int cuModuleUnload(void *module) { return (void)module, 0; }

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module, (void)name;
    return *function = entries, 0;
}

int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    (void)attribute, (void)function;
    return *value = 0, 0;
}

int cuFuncSetAttribute(void *function, int attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return 0;
}

int cuOccupancyMaxActiveClusters(int *clusters, void *function, const struct launch *launch)
{
    (void)function, (void)launch;
    return *clusters = 4, 0;
}

static int text(const char **words) { return *words = "the stand-in failed", 0; }
int cuGetErrorName(int code, const char **words) { return (void)code, text(words); }
int cuGetErrorString(int code, const char **words) { return (void)code, text(words); }
