/* Copyright (c) 2026, The baremetal.inference contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * libcuda.so.1 over the same GPUs: just the functions that the collection calls. A function that is not here does not
 * exist in the library. Nothing is copied and nothing computed; what takes time on a GPU takes it on the clock of its
 * stream, at the rates of the state (README.md), and a moment of real time where a program waits for it.
 */
#include "cuda.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "faults.h"
#include "state.h"

#define CUDA_API __attribute__((visibility("default")))
#define PATH_SIZE 2048
/* Values that change with the load, of one GPU. */
#define MAX_LOADED 64
#define MAX_ALLOCATIONS 64

struct cuda_device {
    int number; /* of its folder gpu<number> */
    CUuuid uuid;
    char bus_id[32]; /* as sysfs has it */
};

/* A file that another text stands in while the GPU is loaded. `before` is NULL where there was no file. */
struct replaced {
    char path[PATH_SIZE];
    char *before;
};

struct sim_context {
    const struct cuda_device *device;
    uint64_t allocated;
    unsigned int launches;
    void *host[MAX_ALLOCATIONS];
    unsigned int host_count;
    struct replaced replaced[MAX_LOADED];
    unsigned int replaced_count;
};

struct sim_stream {
    double milliseconds;
};

struct sim_event {
    double milliseconds;
    bool recorded;
};

struct sim_module {
    char unused;
};

struct sim_function {
    char unused;
};

static bool started;
static struct cuda_device devices[SIM_MAX_GPUS];
static int device_count;
static CUcontext current;
static struct sim_module the_module;
static struct sim_function the_function;

#define TRY(expression)                \
    do {                               \
        CUresult tried = (expression); \
        if (tried != CUDA_SUCCESS)     \
            return tried;              \
    } while (0)

#define REQUIRE(condition)                    \
    do {                                      \
        if (!(condition))                     \
            return CUDA_ERROR_INVALID_VALUE;  \
    } while (0)

/* Every exported function begins with one of these three. */
#define ENTER(gpu) TRY(enter(__func__, gpu))

#define ENTER_DEVICE(device)                           \
    do {                                               \
        if (!started)                                  \
            return CUDA_ERROR_NOT_INITIALIZED;         \
        if ((device) < 0 || (device) >= device_count)  \
            return CUDA_ERROR_INVALID_DEVICE;          \
        ENTER(devices[device].number);                 \
    } while (0)

#define ENTER_CONTEXT()                         \
    do {                                        \
        if (!started)                           \
            return CUDA_ERROR_NOT_INITIALIZED;  \
        if (current == NULL)                    \
            return CUDA_ERROR_INVALID_CONTEXT;  \
        ENTER(current->device->number);         \
    } while (0)

static bool named_by(int gpu, const char *key, const char *function) {
    char wanted[SIM_TEXT];
    return sim_text(gpu, key, wanted, sizeof wanted) == NVML_SUCCESS && strcmp(wanted, function) == 0;
}

/* Faults: an error by the file "faults", or that the call never returns, or that it kills the program. */
static CUresult enter(const char *function, int gpu) {
    const char *folder = gpu == SIM_SYSTEM ? "system/" : "";
    char key[64];
    snprintf(key, sizeof key, "%scuda/hang", folder);
    while (named_by(gpu, key, function))
        sleep(1);
    snprintf(key, sizeof key, "%scuda/crash", folder);
    if (named_by(gpu, key, function))
        raise(SIGSEGV);
    nvmlReturn_t fault = sim_fault(function, gpu);
    /* What CUDA says of a GPU that has fallen off the bus under a program is not recorded. */
    return fault == NVML_ERROR_GPU_IS_LOST ? CUDA_ERROR_UNKNOWN : fault;
}

/* ---- devices ---- */

static bool parse_uuid(const char *text, CUuuid *uuid) {
    unsigned int digits = 0;
    if (strncmp(text, "GPU-", 4) != 0)
        return false;
    for (text += 4; *text != '\0'; text++) {
        if (*text == '-')
            continue;
        if (!isxdigit((unsigned char)*text) || digits == 32)
            return false;
        int value = isdigit((unsigned char)*text) ? *text - '0' : tolower((unsigned char)*text) - 'a' + 10;
        unsigned char *byte = &uuid->bytes[digits / 2];
        *byte = (unsigned char)(digits % 2 == 0 ? value << 4 : *byte | value);
        digits++;
    }
    return digits == 32;
}

static bool is_mig(int gpu) {
    unsigned int mode = 0;
    nvmlReturn_t result = sim_u32(gpu, "mig/current", &mode);
    if (result == NVML_ERROR_NOT_SUPPORTED)
        result = sim_u32(gpu, "mig/pending", &mode);
    return result == NVML_SUCCESS && mode == 1;
}

/* Whether CUDA would show this GPU at all. One in MIG mode has only its instances to show, and no instance is simulated. */
static bool usable(int gpu, struct cuda_device *device) {
    char text[SIM_TEXT];
    unsigned int domain, bus, slot, function;
    if (sim_lost(gpu) != NVML_SUCCESS || is_mig(gpu))
        return false;
    device->number = gpu;
    if (sim_text(gpu, "uuid", text, sizeof text) != NVML_SUCCESS || !parse_uuid(text, &device->uuid))
        return false;
    if (sim_text(gpu, "pci/bus_id", text, sizeof text) != NVML_SUCCESS ||
        sscanf(text, "%8x:%2x:%2x.%1x", &domain, &bus, &slot, &function) != 4)
        return false;
    snprintf(device->bus_id, sizeof device->bus_id, "%04x:%02x:%02x.%x", domain, bus, slot, function);
    return true;
}

/* One word of CUDA_VISIBLE_DEVICES: a UUID or the beginning of one, or an index; -1 for any other. */
static int position(const struct cuda_device all[], int count, const char *word) {
    char *end = NULL;
    if (strncmp(word, "GPU-", 4) == 0) {
        for (int n = 0; n < count; n++) {
            char text[SIM_TEXT];
            if (sim_text(all[n].number, "uuid", text, sizeof text) == NVML_SUCCESS &&
                strncmp(text, word, strlen(word)) == 0)
                return n;
        }
        return -1;
    }
    long index = strtol(word, &end, 10);
    return isdigit((unsigned char)*word) && *end == '\0' && index < count ? (int)index : -1;
}

/* As the CUDA programming guide has it: what comes after the first word that names no GPU is not shown either. */
static void select_visible(const struct cuda_device all[], int count) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char words[SIM_TEXT];
    device_count = 0;
    if (visible == NULL) {
        memcpy(devices, all, (size_t)count * sizeof all[0]);
        device_count = count;
        return;
    }
    snprintf(words, sizeof words, "%s", visible);
    char *rest = NULL;
    for (char *word = strtok_r(words, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        int found = position(all, count, word);
        if (found < 0 || device_count == SIM_MAX_GPUS)
            return;
        devices[device_count++] = all[found];
    }
}

CUDA_API CUresult cuInit(unsigned int flags) {
    int numbers[SIM_MAX_GPUS];
    struct cuda_device all[SIM_MAX_GPUS];
    unsigned int count = 0, error = 0;
    int usable_count = 0;
    sim_choose_directory();
    ENTER(SIM_SYSTEM);
    REQUIRE(flags == 0);
    if (sim_list_gpus(numbers, &count) != NVML_SUCCESS)
        return CUDA_ERROR_NO_DEVICE;
    if (sim_u32(SIM_SYSTEM, "init_error", &error) == NVML_SUCCESS) {
        /* NVML's words for a driver that is not loaded, and for one of another version. */
        if (error == NVML_ERROR_DRIVER_NOT_LOADED)
            return CUDA_ERROR_NO_DEVICE;
        return error == NVML_ERROR_LIB_RM_VERSION_MISMATCH ? CUDA_ERROR_SYSTEM_DRIVER_MISMATCH : CUDA_ERROR_UNKNOWN;
    }
    for (unsigned int n = 0; n < count; n++)
        if (usable(numbers[n], &all[usable_count]))
            usable_count++;
    select_visible(all, usable_count);
    if (device_count == 0)
        return CUDA_ERROR_NO_DEVICE;
    started = true;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDriverGetVersion(int *version) {
    if (!started)
        sim_choose_directory();
    ENTER(SIM_SYSTEM);
    REQUIRE(version != NULL);
    return sim_i32(SIM_SYSTEM, "system/cuda_driver_version", version) == NVML_SUCCESS ? CUDA_SUCCESS
                                                                                      : CUDA_ERROR_UNKNOWN;
}

CUDA_API CUresult cuDeviceGetCount(int *count) {
    if (!started)
        return CUDA_ERROR_NOT_INITIALIZED;
    ENTER(SIM_SYSTEM);
    REQUIRE(count != NULL);
    *count = device_count;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER_DEVICE(ordinal);
    REQUIRE(device != NULL);
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    char text[SIM_TEXT];
    ENTER_DEVICE(device);
    REQUIRE(name != NULL && length > 0);
    if (sim_text(devices[device].number, "name", text, sizeof text) != NVML_SUCCESS)
        return CUDA_ERROR_UNKNOWN;
    snprintf(name, (size_t)length, "%s", text);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    ENTER_DEVICE(device);
    REQUIRE(uuid != NULL);
    *uuid = devices[device].uuid;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetPCIBusId(char *bus_id, int length, CUdevice device) {
    ENTER_DEVICE(device);
    REQUIRE(bus_id != NULL && length > (int)strlen(devices[device].bus_id));
    for (const char *at = devices[device].bus_id; (*bus_id++ = (char)toupper((unsigned char)*at)) != '\0';)
        at++;
    return CUDA_SUCCESS;
}

static CUresult multiprocessors(int gpu, int *value) {
    unsigned int cores = 0;
    char capability[16];
    if (sim_u32(gpu, "num_cores", &cores) != NVML_SUCCESS ||
        sim_text(gpu, "compute_capability", capability, sizeof capability) != NVML_SUCCESS)
        return CUDA_ERROR_UNKNOWN;
    /* FP32 cores of one multiprocessor: 64 in 8.0, 128 from 8.6 on (CUDA programming guide, compute capabilities). */
    *value = (int)(cores / (strcmp(capability, "8.0") == 0 ? 64 : 128));
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    int major = 0, minor = 0;
    char text[16];
    ENTER_DEVICE(device);
    REQUIRE(value != NULL);
    int gpu = devices[device].number;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return multiprocessors(gpu, value);
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
        return sim_i32(gpu, "compute_mode", value) == NVML_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        if (sim_text(gpu, "compute_capability", text, sizeof text) != NVML_SUCCESS ||
            sscanf(text, "%d.%d", &major, &minor) != 2)
            return CUDA_ERROR_UNKNOWN;
        *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? major : minor;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* ---- a GPU under load ---- */

static char *read_file(const char *path) {
    char text[SIM_TEXT];
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NULL;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    return strdup(text);
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "we");
    if (file == NULL || fputs(text, file) < 0)
        sim_debug("%s: cannot be written", path);
    if (file != NULL)
        fclose(file);
}

/* Remember what stands in the file, which is about to be replaced. */
static bool remember(CUcontext context, const char *path) {
    if (context->replaced_count == MAX_LOADED) {
        sim_debug("%s: too many values change with the load", path);
        return false;
    }
    struct replaced *entry = &context->replaced[context->replaced_count++];
    snprintf(entry->path, sizeof entry->path, "%s", path);
    entry->before = read_file(path);
    return true;
}

/* Both ends of a link have one speed: the GPU's file, and that of the port above it. */
static void write_sysfs_speed(CUcontext context, const char *generation) {
    static const char *const speeds[] = {"2.5", "5.0", "8.0", "16.0", "32.0", "64.0"};
    char device[PATH_SIZE], real[PATH_MAX], path[PATH_SIZE], text[32];
    int number = atoi(generation);
    snprintf(device, sizeof device, "%s/sysfs/bus/pci/devices/%s", sim_directory(), context->device->bus_id);
    if (number < 1 || number > 6 || realpath(device, real) == NULL)
        return;
    snprintf(text, sizeof text, "%s GT/s PCIe\n", speeds[number - 1]);
    for (int end = 0; end < 2; end++) {
        int length = snprintf(path, sizeof path, "%s/current_link_speed", real);
        if (length < 0 || (size_t)length >= sizeof path)
            return;
        if (access(path, F_OK) == 0 && remember(context, path))
            write_file(path, text);
        *strrchr(real, '/') = '\0';
    }
}

static void load_value(CUcontext context, const char *key) {
    char from[600], value[SIM_TEXT], path[PATH_SIZE];
    int gpu = context->device->number;
    snprintf(from, sizeof from, "loaded/%s", key);
    if (sim_raw(gpu, from, value, sizeof value) != NVML_SUCCESS)
        return;
    int length = snprintf(path, sizeof path, "%s/run/gpu%d/%s", sim_directory(), gpu, key);
    if (length < 0 || (size_t)length >= sizeof path || !remember(context, path))
        return;
    if (sim_write_volatile(gpu, key, value) != NVML_SUCCESS)
        sim_debug("%s: cannot be written", path);
    if (strcmp(key, "pci/current_link_generation") == 0)
        write_sysfs_speed(context, value);
}

/* Every file below gpu<n>/loaded is a value that its namesake takes while the GPU is loaded. */
static void load_values(CUcontext context, const char *below) {
    char folder[PATH_SIZE];
    int length = snprintf(folder, sizeof folder, "%s/gpu%d/loaded/%s", sim_directory(), context->device->number, below);
    DIR *entries = length < 0 || (size_t)length >= sizeof folder ? NULL : opendir(folder);
    if (entries == NULL)
        return;
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        char key[512], path[PATH_SIZE];
        struct stat status;
        if (entry->d_name[0] == '.')
            continue;
        length = snprintf(key, sizeof key, "%s%s%s", below, *below == '\0' ? "" : "/", entry->d_name);
        if (length < 0 || (size_t)length >= sizeof key)
            continue;
        length = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (length < 0 || (size_t)length >= sizeof path || stat(path, &status) != 0)
            continue;
        if (S_ISDIR(status.st_mode))
            load_values(context, key);
        else
            load_value(context, key);
    }
    closedir(entries);
}

static void unload_values(CUcontext context) {
    while (context->replaced_count > 0) {
        struct replaced *entry = &context->replaced[--context->replaced_count];
        if (entry->before != NULL)
            write_file(entry->path, entry->before);
        else
            unlink(entry->path);
        free(entry->before);
    }
}

/* Another program that holds a GPU in exclusive mode. */
static bool is_held(int gpu) {
    char text[SIM_TEXT];
    return sim_file(gpu, "processes", text, sizeof text) == NVML_SUCCESS && strstr(text, "compute") != NULL;
}

CUDA_API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    int mode = 0;
    (void)flags;
    ENTER_DEVICE(device);
    REQUIRE(context != NULL);
    int gpu = devices[device].number;
    if (sim_i32(gpu, "compute_mode", &mode) == NVML_SUCCESS &&
        (mode == CU_COMPUTEMODE_PROHIBITED || (mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS && is_held(gpu))))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    CUcontext fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    fresh->device = &devices[device];
    load_values(fresh, "");
    *context = current = fresh;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxDestroy_v2(CUcontext context) {
    ENTER_CONTEXT();
    if (context == NULL || context != current)
        return CUDA_ERROR_INVALID_CONTEXT;
    unload_values(context);
    while (context->host_count > 0)
        free(context->host[--context->host_count]);
    free(context);
    current = NULL;
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

CUDA_API CUresult cuMemAllocHost_v2(void **pointer, size_t size) {
    ENTER_CONTEXT();
    REQUIRE(pointer != NULL && size > 0);
    if (current->host_count == MAX_ALLOCATIONS || (*pointer = calloc(1, size)) == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    current->host[current->host_count++] = *pointer;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
    uint64_t total = 0, used = 0, reserved = 0;
    ENTER_CONTEXT();
    REQUIRE(pointer != NULL && size > 0);
    int gpu = current->device->number;
    if (sim_u64(gpu, "memory/total", &total) != NVML_SUCCESS || sim_u64(gpu, "memory/used", &used) != NVML_SUCCESS)
        return CUDA_ERROR_UNKNOWN;
    if (sim_u64(gpu, "memory/reserved", &reserved) != NVML_SUCCESS)
        reserved = 0;
    if (used + reserved + current->allocated + size > total)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = 0x700000000000 + current->allocated;
    current->allocated += size;
    return CUDA_SUCCESS;
}

/* ---- streams, events, copies ---- */

CUDA_API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    (void)flags;
    ENTER_CONTEXT();
    REQUIRE(stream != NULL);
    *stream = calloc(1, sizeof **stream);
    return *stream == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER_CONTEXT();
    REQUIRE(stream != NULL);
    free(stream);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    (void)flags;
    ENTER_CONTEXT();
    REQUIRE(event != NULL);
    *event = calloc(1, sizeof **event);
    return *event == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUDA_API CUresult cuEventDestroy_v2(CUevent event) {
    ENTER_CONTEXT();
    REQUIRE(event != NULL);
    free(event);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER_CONTEXT();
    REQUIRE(event != NULL && stream != NULL);
    event->milliseconds = stream->milliseconds;
    event->recorded = true;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventSynchronize(CUevent event) {
    const struct timespec moment = {.tv_nsec = 1000000};
    ENTER_CONTEXT();
    REQUIRE(event != NULL);
    nanosleep(&moment, NULL);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    ENTER_CONTEXT();
    REQUIRE(milliseconds != NULL);
    if (start == NULL || end == NULL || !start->recorded || !end->recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = (float)(end->milliseconds - start->milliseconds);
    return CUDA_SUCCESS;
}

/* Megabytes (1e6) per second. What the state does not say follows from the link: 80 % of what its lanes carry, as
 * healthy GPUs of generation 4 reach. */
static double rate(int gpu, const char *key) {
    static const double lane[] = {250.0, 500.0, 985.0, 1969.0, 3938.0, 7563.0};
    unsigned int value = 0, generation = 0, width = 0;
    if (sim_u32(gpu, key, &value) == NVML_SUCCESS && value > 0)
        return value;
    if (sim_u32(gpu, "pci/current_link_generation", &generation) != NVML_SUCCESS || generation < 1 || generation > 6 ||
        sim_u32(gpu, "pci/current_link_width", &width) != NVML_SUCCESS || width == 0)
        return 1000.0;
    return 0.8 * lane[generation - 1] * width;
}

CUDA_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    ENTER_CONTEXT();
    REQUIRE(to != 0 && from != NULL && stream != NULL);
    stream->milliseconds += (double)size / rate(current->device->number, "cuda/h2d_mb_per_s") / 1e3;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    unsigned int wrong = 0;
    ENTER_CONTEXT();
    REQUIRE(to != NULL && from != 0 && stream != NULL);
    stream->milliseconds += (double)size / rate(current->device->number, "cuda/d2h_mb_per_s") / 1e3;
    /* A GPU that miscalculates: so many results are different after every launch. */
    if (current->launches > 0 && sim_u32(current->device->number, "cuda/wrong_results", &wrong) == NVML_SUCCESS)
        for (size_t n = 0; n < wrong && n < size / sizeof(unsigned int); n++)
            ((unsigned int *)to)[n] = current->launches;
    return CUDA_SUCCESS;
}

/* ---- the load ---- */

CUDA_API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER_CONTEXT();
    REQUIRE(module != NULL && image != NULL);
    if (strncmp(image, ".version ", 9) != 0)
        return CUDA_ERROR_INVALID_PTX;
    *module = &the_module;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    ENTER_CONTEXT();
    REQUIRE(function != NULL && name != NULL);
    if (module != &the_module)
        return CUDA_ERROR_INVALID_HANDLE;
    if (strcmp(name, "burn") != 0)
        return CUDA_ERROR_NOT_FOUND;
    *function = &the_function;
    return CUDA_SUCCESS;
}

/* The one kernel that is known: (results, rounds), eight products of 16 x 16 and 16 x 8 matrices a warp and round. */
CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                 unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                                 CUstream stream, void **parameters, void **extra) {
    unsigned int teraflops = 0;
    (void)shared;
    (void)extra;
    ENTER_CONTEXT();
    if (function != &the_function)
        return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE(stream != NULL && parameters != NULL && grid_x > 0 && grid_y == 1 && grid_z == 1);
    REQUIRE(block_x > 0 && block_x <= 1024 && block_y == 1 && block_z == 1);
    if (sim_u32(current->device->number, "cuda/teraflops", &teraflops) != NVML_SUCCESS || teraflops == 0)
        teraflops = 200;
    double warps = (double)grid_x * block_x / 32.0;
    stream->milliseconds += warps * 8 * 4096 * *(const unsigned int *)parameters[1] / (teraflops * 1e9);
    current->launches++;
    return CUDA_SUCCESS;
}

/* ---- errors ---- */

CUDA_API CUresult cuGetErrorName(CUresult error, const char **name) {
    static const struct {
        CUresult code;
        const char *name;
    } names[] = {
        {CUDA_SUCCESS, "CUDA_SUCCESS"},
        {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
        {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX"},
        {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {802, "CUDA_ERROR_SYSTEM_NOT_READY"},
        {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
        {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN"},
    };
    REQUIRE(name != NULL);
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++)
        if (names[n].code == error) {
            *name = names[n].name;
            return CUDA_SUCCESS;
        }
    /* As for a number that the real library does not know. */
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}
