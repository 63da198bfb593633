/* Copyright (c) 2026, The baremetal.inference contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The exported functions. A function that is not here does not exist in the library, so callers get
 * NVML_ERROR_FUNCTION_NOT_FOUND from their own symbol lookup. Where an answer to a bad argument may look odd, it is
 * the one that a real H200 with driver 580.159.04 gave: recordings/nvml-h200-driver580-answers.json.
 */
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"
#include "faults.h"
#include "fields.h"
#include "state.h"

struct sim_device {
    int number;         /* of its folder gpu<number> */
    unsigned int index; /* as NVML counts */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int references;
/* NVML is not initialised in a forked child. */
static pid_t owner;
static struct sim_device devices[SIM_MAX_GPUS];
static unsigned int device_count;

static bool initialized(void) {
    pthread_mutex_lock(&lock);
    bool result = references > 0 && owner == getpid();
    pthread_mutex_unlock(&lock);
    return result;
}

#define REQUIRE(condition)                       \
    do {                                         \
        if (!(condition))                        \
            return NVML_ERROR_INVALID_ARGUMENT;  \
    } while (0)

#define TRY(expression)                    \
    do {                                   \
        nvmlReturn_t tried = (expression); \
        if (tried != NVML_SUCCESS)         \
            return tried;                  \
    } while (0)

/* Every exported function begins with one of these, once: here faults by file are found, and their calls counted. */
#define FAULT(function, gpu)                               \
    do {                                                   \
        nvmlReturn_t wanted = sim_fault((function), (gpu)); \
        if (wanted == SIM_FAULT_SUCCESS)                   \
            return NVML_SUCCESS;                           \
        if (wanted != NVML_SUCCESS)                        \
            return wanted;                                 \
    } while (0)

#define ENTER()                              \
    do {                                     \
        if (!initialized())                  \
            return NVML_ERROR_UNINITIALIZED; \
        FAULT(__func__, SIM_SYSTEM);         \
    } while (0)

#define ENTER_DEVICE(device)                        \
    do {                                            \
        if (!initialized())                         \
            return NVML_ERROR_UNINITIALIZED;        \
        if (!valid(device))                         \
            return NVML_ERROR_INVALID_ARGUMENT;     \
        FAULT(__func__, (device)->number);          \
    } while (0)

#define ENTER_TWO(one, other)                   \
    do {                                        \
        ENTER_DEVICE(one);                      \
        if (!valid(other))                      \
            return NVML_ERROR_INVALID_ARGUMENT; \
        TRY(sim_lost((other)->number));         \
    } while (0)

/* What finds a GPU: a fault of that GPU counts for it, too. */
#define FIND_DEVICE(expression, device)                               \
    do {                                                              \
        nvmlReturn_t found = (expression);                            \
        if (found != NVML_SUCCESS) {                                  \
            TRY(sim_fault(__func__, SIM_SYSTEM));                     \
            return found;                                             \
        }                                                             \
        return sim_fault(__func__, (*(device))->number);              \
    } while (0)

static bool valid(nvmlDevice_t device) {
    for (unsigned int n = 0; n < device_count; n++)
        if (device == &devices[n])
            return true;
    return false;
}

/* ---- session ---- */

static nvmlReturn_t start(const char *function, unsigned int flags) {
    int numbers[SIM_MAX_GPUS];
    unsigned int count = 0, forced = 0;
    sim_choose_directory();
    TRY(sim_list_gpus(numbers, &count));
    TRY(sim_fault(function, SIM_SYSTEM));
    nvmlReturn_t result = sim_u32(SIM_SYSTEM, "init_error", &forced);
    if (result == NVML_SUCCESS)
        return forced;
    if (result != NVML_ERROR_NOT_SUPPORTED)
        return result;
    if (count == 0 && (flags & NVML_INIT_FLAG_NO_GPUS) == 0)
        return NVML_ERROR_GPU_NOT_FOUND;
    for (unsigned int n = 0; n < count; n++)
        devices[n] = (struct sim_device){.number = numbers[n], .index = n};
    device_count = count;
    return NVML_SUCCESS;
}

static nvmlReturn_t begin(const char *function, unsigned int flags) {
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (owner != getpid())
        references = 0;
    if (references == 0) {
        result = start(function, flags);
        owner = getpid();
    }
    if (result == NVML_SUCCESS)
        references++;
    pthread_mutex_unlock(&lock);
    return result;
}

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    return begin(__func__, flags);
}

NVML_API nvmlReturn_t nvmlInit_v2(void) {
    return begin(__func__, 0);
}

NVML_API nvmlReturn_t nvmlInit(void) {
    return begin(__func__, 0);
}

NVML_API nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
    ENTER();
    pthread_mutex_lock(&lock);
    if (references > 0 && owner == getpid()) {
        references--;
        result = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

NVML_API const char *nvmlErrorString(nvmlReturn_t code) {
    static const char *const texts[] = {
        "Success",
        "Uninitialized",
        "Invalid Argument",
        "Not Supported",
        "Insufficient Permissions",
        "Already Initialized",
        "Not Found",
        "Insufficient Size",
        "Insufficient External Power",
        "Driver Not Loaded",
        "Timeout",
        "Interrupt Request Issue",
        "NVML Shared Library Not Found",
        "Function Not Found",
        "Corrupted infoROM",
        "GPU is lost",
        "GPU requires reset",
        "GPU access blocked by the operating system",
        "Driver/library version mismatch",
        "In use by another client",
        "Insufficient Memory",
        "No data",
        "vGPU ECC not supported",
        "Insufficient Resources",
        "Invalid Frequency",
        "Argument version mismatch",
        "Requested functionality has been deprecated",
        "System is not in ready state",
        "No supported GPUs were found",
        "Resource not in correct state to perform requested operation",
        "Reset type is not supported for given device",
    };
    return code < sizeof texts / sizeof texts[0] ? texts[code] : "Unknown Error";
}

/* ---- helpers ---- */

static nvmlReturn_t answer_text(int gpu, const char *key, char *out, unsigned int size) {
    char text[SIM_TEXT];
    REQUIRE(out != NULL);
    TRY(sim_text(gpu, key, text, sizeof text));
    if (strlen(text) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t answer_two(int gpu, const char *first_key, unsigned int *first, const char *second_key,
                               unsigned int *second) {
    unsigned int one = 0, two = 0;
    REQUIRE(first != NULL && second != NULL);
    TRY(sim_u32(gpu, first_key, &one));
    TRY(sim_u32(gpu, second_key, &two));
    *first = one;
    *second = two;
    return NVML_SUCCESS;
}

/* Name of entry `number` of a NULL-terminated table, or NULL. */
static const char *name_of(const char *const names[], unsigned int count, unsigned int number) {
    return number < count ? names[number] : NULL;
}
#define NAME_OF(names, number) name_of((names), sizeof(names) / sizeof((names)[0]), (number))

#define TEXT_GETTER(function, key)                                                           \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, char *text, unsigned int length) {   \
        ENTER_DEVICE(device);                                                                \
        return answer_text(device->number, (key), text, length);                             \
    }

#define NUMBER_GETTER(function, type, read, key)                            \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, type *value) {      \
        ENTER_DEVICE(device);                                               \
        REQUIRE(value != NULL);                                             \
        type number = 0;                                                    \
        TRY(read(device->number, (key), &number));                          \
        *value = number;                                                    \
        return NVML_SUCCESS;                                                \
    }

#define U32_GETTER(function, key) NUMBER_GETTER(function, unsigned int, sim_u32, key)
#define I32_GETTER(function, key) NUMBER_GETTER(function, int, sim_i32, key)
#define U64_GETTER(function, key) NUMBER_GETTER(function, uint64_t, sim_u64, key)

#define TWO_GETTER(function, first_key, second_key)                                                        \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, unsigned int *first, unsigned int *second) {       \
        ENTER_DEVICE(device);                                                                              \
        return answer_two(device->number, (first_key), first, (second_key), second);                       \
    }

/* ---- system ---- */

#define SYSTEM_TEXT(function, key)                                       \
    NVML_API nvmlReturn_t function(char *text, unsigned int length) {    \
        ENTER();                                                         \
        return answer_text(SIM_SYSTEM, (key), text, length);             \
    }

SYSTEM_TEXT(nvmlSystemGetDriverVersion, "system/driver_version")
SYSTEM_TEXT(nvmlSystemGetNVMLVersion, "system/nvml_version")

#define CUDA_VERSION(function)                                                 \
    NVML_API nvmlReturn_t function(int *version) {                             \
        ENTER();                                                               \
        REQUIRE(version != NULL);                                              \
        return sim_i32(SIM_SYSTEM, "system/cuda_driver_version", version);     \
    }

CUDA_VERSION(nvmlSystemGetCudaDriverVersion)
CUDA_VERSION(nvmlSystemGetCudaDriverVersion_v2)

#define DEVICE_COUNT(function)                            \
    NVML_API nvmlReturn_t function(unsigned int *count) { \
        ENTER();                                          \
        REQUIRE(count != NULL);                           \
        *count = device_count;                            \
        return NVML_SUCCESS;                              \
    }

DEVICE_COUNT(nvmlDeviceGetCount)
DEVICE_COUNT(nvmlDeviceGetCount_v2)

/* ---- handles ---- */

/* The functions that find a GPU begin with this one, and end with FIND_DEVICE. */
#define ENTER_SEARCH()                       \
    do {                                     \
        if (!initialized())                  \
            return NVML_ERROR_UNINITIALIZED; \
    } while (0)

static nvmlReturn_t by_index(unsigned int index, nvmlDevice_t *device) {
    REQUIRE(device != NULL && index < device_count);
    *device = &devices[index];
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    ENTER_SEARCH();
    FIND_DEVICE(by_index(index, device), device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    ENTER_SEARCH();
    FIND_DEVICE(by_index(index, device), device);
}

static nvmlReturn_t by_text(const char *key, const char *wanted, size_t optional_prefix, nvmlDevice_t *device) {
    REQUIRE(wanted != NULL && device != NULL);
    for (unsigned int n = 0; n < device_count; n++) {
        char text[SIM_TEXT];
        if (sim_text(devices[n].number, key, text, sizeof text) != NVML_SUCCESS)
            continue;
        if (strcmp(text, wanted) == 0 || (strlen(text) > optional_prefix && strcmp(text + optional_prefix, wanted) == 0)) {
            *device = &devices[n];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    ENTER_SEARCH();
    FIND_DEVICE(by_text("uuid", uuid, strlen("GPU-"), device), device);
}

static nvmlReturn_t by_versioned_uuid(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
    char text[42] = "";
    REQUIRE(uuid != NULL && device != NULL);
    if (uuid->version != SIM_VERSION(nvmlUUID_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (uuid->type == 1) {
        memcpy(text, uuid->value.str, sizeof uuid->value.str);
    } else if (uuid->type == 2) {
        char *end = text + sprintf(text, "GPU-");
        for (int n = 0; n < 16; n++)
            end += sprintf(end, n == 4 || n == 6 || n == 8 || n == 10 ? "-%02x" : "%02x", uuid->value.bytes[n]);
    } else {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return by_text("uuid", text, strlen("GPU-"), device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
    ENTER_SEARCH();
    FIND_DEVICE(by_versioned_uuid(uuid, device), device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    ENTER_SEARCH();
    FIND_DEVICE(by_text("serial", serial, 0, device), device);
}

struct bus_id {
    unsigned int domain, bus, device, function;
};

/* "[domain:]bus:device[.function]" in hexadecimal, with blanks before and anything after it, as the real one takes. */
static bool parse_bus_id(const char *text, struct bus_id *id) {
    unsigned long parts[3];
    int count = 0;
    char *end = NULL;
    while (isspace((unsigned char)*text))
        text++;
    for (;;) {
        if (!isxdigit((unsigned char)*text))
            return false;
        parts[count++] = strtoul(text, &end, 16);
        if (parts[count - 1] > 0xFFFFFFFFUL)
            return false;
        if (count == 3 || *end != ':')
            break;
        text = end + 1;
    }
    if (count < 2)
        return false;
    id->domain = count == 3 ? (unsigned int)parts[0] : 0;
    id->bus = (unsigned int)parts[count - 2];
    id->device = (unsigned int)parts[count - 1];
    id->function = *end == '.' && isxdigit((unsigned char)end[1]) ? (unsigned int)strtoul(end + 1, NULL, 16) : 0;
    return true;
}

static nvmlReturn_t read_bus_id(int gpu, const char *key, struct bus_id *id) {
    char text[64];
    TRY(sim_text(gpu, key, text, sizeof text));
    if (!parse_bus_id(text, id)) {
        sim_debug("%s: '%s' is no PCI bus id", key, text);
        return NVML_ERROR_UNKNOWN;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t by_bus_id(const char *bus_id, nvmlDevice_t *device) {
    struct bus_id wanted, have;
    REQUIRE(bus_id != NULL && device != NULL && parse_bus_id(bus_id, &wanted) && wanted.function == 0);
    for (unsigned int n = 0; n < device_count; n++)
        if (read_bus_id(devices[n].number, "pci/bus_id", &have) == NVML_SUCCESS && have.domain == wanted.domain &&
            have.bus == wanted.bus && have.device == wanted.device) {
            *device = &devices[n];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    ENTER_SEARCH();
    FIND_DEVICE(by_bus_id(bus_id, device), device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device) {
    ENTER_SEARCH();
    FIND_DEVICE(by_bus_id(bus_id, device), device);
}

/* ---- identity ---- */

TEXT_GETTER(nvmlDeviceGetName, "name")
TEXT_GETTER(nvmlDeviceGetUUID, "uuid")
TEXT_GETTER(nvmlDeviceGetSerial, "serial")
TEXT_GETTER(nvmlDeviceGetVbiosVersion, "vbios_version")
TEXT_GETTER(nvmlDeviceGetBoardPartNumber, "board_part_number")
TEXT_GETTER(nvmlDeviceGetInforomImageVersion, "inforom/image_version")
U32_GETTER(nvmlDeviceGetInforomConfigurationChecksum, "inforom/checksum")
U32_GETTER(nvmlDeviceGetBrand, "brand")
U32_GETTER(nvmlDeviceGetArchitecture, "architecture")
U32_GETTER(nvmlDeviceGetMinorNumber, "minor_number")
U32_GETTER(nvmlDeviceGetBoardId, "board_id")
U32_GETTER(nvmlDeviceGetMultiGpuBoard, "multi_gpu_board")
U32_GETTER(nvmlDeviceGetModuleId, "module_id")
U32_GETTER(nvmlDeviceGetNumGpuCores, "num_cores")
U32_GETTER(nvmlDeviceGetBusType, "bus_type")
U32_GETTER(nvmlDeviceGetIrqNum, "irq")
U32_GETTER(nvmlDeviceGetPowerSource, "power_source")
U32_GETTER(nvmlDeviceGetAdaptiveClockInfoStatus, "adaptive_clocks")
U32_GETTER(nvmlDeviceGetDisplayMode, "display_mode")
U32_GETTER(nvmlDeviceGetDisplayActive, "display_active")
U32_GETTER(nvmlDeviceGetVirtualizationMode, "virtualization_mode")
U64_GETTER(nvmlDeviceGetSupportedEventTypes, "supported_event_types")
I32_GETTER(nvmlDeviceGetNumaNodeId, "numa_node_id")
TWO_GETTER(nvmlDeviceGetGspFirmwareMode, "gsp/mode", "gsp/default_mode")

NVML_API nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version) {
    ENTER_DEVICE(device);
    return answer_text(device->number, "gsp/version", version, 64);
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    ENTER_DEVICE(device);
    REQUIRE(index != NULL);
    *index = device->index;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, unsigned int object, char *version,
                                                  unsigned int length) {
    static const char *const keys[] = {"inforom/oem", "inforom/ecc", "inforom/power", "inforom/den"};
    ENTER_DEVICE(device);
    const char *key = NAME_OF(keys, object);
    REQUIRE(key != NULL);
    return answer_text(device->number, key, version, length);
}

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    char text[32];
    int64_t first = 0, second = 0;
    ENTER_DEVICE(device);
    REQUIRE(major != NULL && minor != NULL);
    TRY(sim_text(device->number, "compute_capability", text, sizeof text));
    char *dot = strchr(text, '.');
    if (dot == NULL) {
        sim_debug("compute_capability: '%s' is not <major>.<minor>", text);
        return NVML_ERROR_UNKNOWN;
    }
    *dot = '\0';
    TRY(sim_parse_i64("compute_capability", text, &first));
    TRY(sim_parse_i64("compute_capability", dot + 1, &second));
    *major = (int)first;
    *minor = (int)second;
    return NVML_SUCCESS;
}

/* Boards with several GPUs are not simulated. */
NVML_API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int *same) {
    ENTER_TWO(one, other);
    REQUIRE(same != NULL);
    *same = one == other;
    return NVML_SUCCESS;
}

/* Structures of a version number and one number. */
static nvmlReturn_t answer_versioned(nvmlDevice_t device, const char *key, nvmlVersionedUint_t *out) {
    unsigned int number = 0;
    REQUIRE(out != NULL);
    if (out->version != SIM_VERSION(nvmlVersionedUint_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(sim_u32(device->number, key, &number));
    out->value = number;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlVersionedUint_t *mode) {
    ENTER_DEVICE(device);
    return answer_versioned(device, "addressing_mode", mode);
}

NVML_API nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, nvmlVersionedUint_t *flag) {
    ENTER_DEVICE(device);
    return answer_versioned(device, "unrepairable_memory", flag);
}

NVML_API nvmlReturn_t nvmlDeviceGetPdi(nvmlDevice_t device, nvmlPdi_t *pdi) {
    uint64_t number = 0;
    ENTER_DEVICE(device);
    REQUIRE(pdi != NULL);
    if (pdi->version != SIM_VERSION(nvmlPdi_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(sim_u64(device->number, "pdi", &number));
    pdi->value = number;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *status) {
    ENTER_DEVICE(device);
    REQUIRE(status != NULL);
    if (status->version != SIM_VERSION(nvmlRepairStatus_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return answer_two(device->number, "repair/channel_pending", &status->bChannelRepairPending, "repair/tpc_pending",
                      &status->bTpcRepairPending);
}

/* ---- PCI ---- */

U32_GETTER(nvmlDeviceGetCurrPcieLinkGeneration, "pci/current_link_generation")
U32_GETTER(nvmlDeviceGetMaxPcieLinkGeneration, "pci/max_link_generation")
U32_GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pci/gpu_max_link_generation")
U32_GETTER(nvmlDeviceGetCurrPcieLinkWidth, "pci/current_link_width")
U32_GETTER(nvmlDeviceGetMaxPcieLinkWidth, "pci/max_link_width")
U32_GETTER(nvmlDeviceGetPcieSpeed, "pci/speed_mbps")
U32_GETTER(nvmlDeviceGetPcieLinkMaxSpeed, "pci/max_speed")
U32_GETTER(nvmlDeviceGetPcieReplayCounter, "pci/replay_counter")

NVML_API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter, unsigned int *value) {
    static const char *const keys[] = {"pci/throughput_tx", "pci/throughput_rx"};
    ENTER_DEVICE(device);
    const char *key = NAME_OF(keys, counter);
    REQUIRE(key != NULL && value != NULL);
    return sim_u32(device->number, key, value);
}

static void write_bus_ids(const struct bus_id *id, char legacy[16], char full[32]) {
    if (legacy != NULL)
        /* 16 bytes have no room for eight digits; the recorded "FFFFFFF:FF:FF.0" shows how the real one cuts them. */
        snprintf(legacy, 16, "%04X:%02X:%02X.0", id->domain & 0x0FFFFFFFU, id->bus & 0xFFU, id->device & 0xFFU);
    if (full != NULL)
        snprintf(full, 32, "%08X:%02X:%02X.0", id->domain, id->bus & 0xFFU, id->device & 0xFFU);
}

static nvmlReturn_t read_pci(nvmlDevice_t device, nvmlPciInfo_t *info) {
    struct bus_id id;
    unsigned int ids[2];
    REQUIRE(info != NULL);
    TRY(read_bus_id(device->number, "pci/bus_id", &id));
    TRY(sim_u32(device->number, "pci/device_id", &ids[0]));
    TRY(sim_u32(device->number, "pci/subsystem_id", &ids[1]));
    memset(info, 0, sizeof *info);
    write_bus_ids(&id, info->busIdLegacy, info->busId);
    info->domain = id.domain;
    info->bus = id.bus;
    info->device = id.device;
    info->pciDeviceId = ids[0];
    info->pciSubSystemId = ids[1];
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) {
    ENTER_DEVICE(device);
    return read_pci(device, info);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *info) {
    nvmlPciInfo_t newer;
    ENTER_DEVICE(device);
    TRY(read_pci(device, &newer));
    REQUIRE(info != NULL);
    memcpy(info->busId, newer.busIdLegacy, sizeof info->busId);
    info->domain = newer.domain;
    info->bus = newer.bus;
    info->device = newer.device;
    info->pciDeviceId = newer.pciDeviceId;
    info->pciSubSystemId = newer.pciSubSystemId;
    return NVML_SUCCESS;
}

/* The first version ends before pciSubSystemId. */
NVML_API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v1_t *info) {
    nvmlPciInfo_t newer;
    ENTER_DEVICE(device);
    TRY(read_pci(device, &newer));
    REQUIRE(info != NULL);
    memcpy(info->busId, newer.busIdLegacy, sizeof info->busId);
    info->domain = newer.domain;
    info->bus = newer.bus;
    info->device = newer.device;
    info->pciDeviceId = newer.pciDeviceId;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *info) {
    nvmlPciInfo_t plain;
    unsigned int classes[2];
    ENTER_DEVICE(device);
    TRY(read_pci(device, &plain));
    REQUIRE(info != NULL);
    if (info->version != SIM_VERSION(nvmlPciInfoExt_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(sim_u32(device->number, "pci/base_class", &classes[0]));
    TRY(sim_u32(device->number, "pci/sub_class", &classes[1]));
    info->domain = plain.domain;
    info->bus = plain.bus;
    info->device = plain.device;
    info->pciDeviceId = plain.pciDeviceId;
    info->pciSubSystemId = plain.pciSubSystemId;
    info->baseClass = classes[0];
    info->subClass = classes[1];
    memcpy(info->busId, plain.busId, sizeof info->busId);
    return NVML_SUCCESS;
}

/* ---- memory ---- */

U32_GETTER(nvmlDeviceGetMemoryBusWidth, "memory/bus_width")

static nvmlReturn_t read_memory(int gpu, nvmlMemory_v2_t *memory) {
    uint64_t total = 0, reserved = 0, used = 0;
    TRY(sim_u64(gpu, "memory/total", &total));
    TRY(sim_u64(gpu, "memory/reserved", &reserved));
    TRY(sim_u64(gpu, "memory/used", &used));
    if (reserved > total || used > total - reserved) {
        sim_debug("gpu%d/memory: reserved and used are more than total", gpu);
        return NVML_ERROR_UNKNOWN;
    }
    memory->total = total;
    memory->reserved = reserved;
    memory->used = used;
    memory->free = total - reserved - used;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    ENTER_DEVICE(device);
    REQUIRE(memory != NULL);
    if (memory->version != SIM_VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    return read_memory(device->number, memory);
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlMemory_v2_t newer;
    ENTER_DEVICE(device);
    REQUIRE(memory != NULL);
    TRY(read_memory(device->number, &newer));
    memory->total = newer.total;
    memory->free = newer.free;
    memory->used = newer.total - newer.free;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    uint64_t total = 0, used = 0;
    ENTER_DEVICE(device);
    REQUIRE(memory != NULL);
    TRY(sim_u64(device->number, "bar1/total", &total));
    TRY(sim_u64(device->number, "bar1/used", &used));
    if (used > total) {
        sim_debug("gpu%d/bar1: used is more than total", device->number);
        return NVML_ERROR_UNKNOWN;
    }
    memory->bar1Total = total;
    memory->bar1Used = used;
    memory->bar1Free = total - used;
    return NVML_SUCCESS;
}

/* ---- modes ---- */

U32_GETTER(nvmlDeviceGetPersistenceMode, "persistence_mode")
U32_GETTER(nvmlDeviceGetComputeMode, "compute_mode")
U32_GETTER(nvmlDeviceGetPerformanceState, "performance_state")
U32_GETTER(nvmlDeviceGetPowerState, "performance_state")
U32_GETTER(nvmlDeviceGetMaxMigDeviceCount, "mig/max_devices")

NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    unsigned int now = 0, later = 0;
    ENTER_DEVICE(device);
    REQUIRE(current != NULL && pending != NULL);
    TRY(sim_mig(device->number, &now, &later));
    *current = now;
    *pending = later;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig) {
    ENTER_DEVICE(device);
    REQUIRE(is_mig != NULL);
    *is_mig = 0;
    return NVML_SUCCESS;
}

/* ---- ECC and memory health ---- */

U32_GETTER(nvmlDeviceGetDefaultEccMode, "ecc/default")

NVML_API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    unsigned int now = 0, later = 0;
    ENTER_DEVICE(device);
    REQUIRE(current != NULL && pending != NULL);
    TRY(sim_ecc(device->number, &now, &later));
    *current = now;
    *pending = later;
    return NVML_SUCCESS;
}

static const char *const error_kinds[] = {"corrected", "uncorrected"};
static const char *const counter_kinds[] = {"volatile", "aggregate"};

/* Folder of the counts, or INVALID_ARGUMENT. */
static nvmlReturn_t errors_folder(unsigned int kind, unsigned int counter, char *out, size_t size) {
    const char *kind_name = NAME_OF(error_kinds, kind);
    const char *counter_name = NAME_OF(counter_kinds, counter);
    REQUIRE(kind_name != NULL && counter_name != NULL);
    snprintf(out, size, "ecc/%s/%s", counter_name, kind_name);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int kind, unsigned int counter,
                                                  unsigned long long *count) {
    char folder[64];
    uint64_t number = 0;
    ENTER_DEVICE(device);
    REQUIRE(count != NULL);
    TRY(errors_folder(kind, counter, folder, sizeof folder));
    TRY(sim_ecc_total(device->number, folder, &number));
    *count = number;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int kind, unsigned int counter,
                                                      unsigned int place, unsigned long long *count) {
    static const char *const places[] = {"l1",      "l2",          "dram", "register_file",
                                         "texture", "texture_shm", "cbu",  "sram"};
    char folder[64];
    char key[128];
    uint64_t number = 0;
    ENTER_DEVICE(device);
    const char *name = NAME_OF(places, place);
    REQUIRE(count != NULL && name != NULL);
    TRY(errors_folder(kind, counter, folder, sizeof folder));
    TRY(sim_ecc_counts(device->number));
    snprintf(key, sizeof key, "%s/%s", folder, name);
    TRY(sim_u64(device->number, key, &number));
    *count = number;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                                unsigned int *uncorrectable, unsigned int *pending,
                                                unsigned int *failure) {
    unsigned int counts[2];
    ENTER_DEVICE(device);
    REQUIRE(correctable != NULL && uncorrectable != NULL);
    TRY(answer_two(device->number, "remapped_rows/correctable", &counts[0], "remapped_rows/uncorrectable", &counts[1]));
    TRY(answer_two(device->number, "remapped_rows/pending", pending, "remapped_rows/failure", failure));
    *correctable = counts[0];
    *uncorrectable = counts[1];
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRowsInfo_v2_t *info) {
    nvmlRemappedRowsInfo_v2_t rows;
    ENTER_DEVICE(device);
    REQUIRE(info != NULL);
    TRY(answer_two(device->number, "remapped_rows/correctable", &rows.corrActiveRemaps,
                   "remapped_rows/correctable_inactive", &rows.corrInactiveRemaps));
    TRY(answer_two(device->number, "remapped_rows/uncorrectable", &rows.uncActiveRemaps,
                   "remapped_rows/uncorrectable_inactive", &rows.uncInactiveRemaps));
    TRY(answer_two(device->number, "remapped_rows/pending", &rows.bPending, "remapped_rows/failure",
                   &rows.bfailureOccurred));
    *info = rows;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values) {
    nvmlRowRemapperHistogramValues_t banks;
    ENTER_DEVICE(device);
    REQUIRE(values != NULL);
    TRY(answer_two(device->number, "remapped_rows/histogram#max", &banks.max, "remapped_rows/histogram#high",
                   &banks.high));
    TRY(answer_two(device->number, "remapped_rows/histogram#partial", &banks.partial, "remapped_rows/histogram#low",
                   &banks.low));
    TRY(sim_u32(device->number, "remapped_rows/histogram#none", &banks.none));
    *values = banks;
    return NVML_SUCCESS;
}

/* Whitespace-separated page addresses; Ampere and later have none (they remap rows), so the file is missing there. */
NVML_API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned int cause, unsigned int *count,
                                                unsigned long long *addresses) {
    static const char *const paths[] = {"retired_pages/single_bit", "retired_pages/double_bit"};
    char text[SIM_TEXT];
    unsigned int found = 0;
    ENTER_DEVICE(device);
    const char *path = NAME_OF(paths, cause);
    REQUIRE(path != NULL && count != NULL);
    TRY(sim_file(device->number, path, text, sizeof text));
    char *save = NULL;
    for (char *word = strtok_r(text, " \t\n", &save); word != NULL; word = strtok_r(NULL, " \t\n", &save)) {
        uint64_t address = 0;
        TRY(sim_parse_u64(path, word, &address));
        if (addresses != NULL && found < *count)
            addresses[found] = address;
        found++;
    }
    bool fits = found == 0 || (addresses != NULL && found <= *count);
    *count = found;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

U32_GETTER(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pages/pending")

/* ---- power, temperature, clocks, load ---- */

U32_GETTER(nvmlDeviceGetPowerUsage, "power/usage")
U32_GETTER(nvmlDeviceGetPowerManagementMode, "power/management_mode")
U32_GETTER(nvmlDeviceGetPowerManagementLimit, "power/limit")
U32_GETTER(nvmlDeviceGetPowerManagementDefaultLimit, "power/default_limit")
TWO_GETTER(nvmlDeviceGetPowerManagementLimitConstraints, "power/min_limit", "power/max_limit")
U64_GETTER(nvmlDeviceGetTotalEnergyConsumption, "power/energy")

NVML_API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit) {
    ENTER_DEVICE(device);
    REQUIRE(limit != NULL);
    return sim_enforced_limit(device->number, limit);
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *degrees) {
    ENTER_DEVICE(device);
    REQUIRE(sensor == 0 && degrees != NULL);
    return sim_u32(device->number, "temperature/gpu", degrees);
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
    ENTER_DEVICE(device);
    REQUIRE(temperature != NULL);
    if (temperature->version != SIM_VERSION(nvmlTemperature_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    REQUIRE(temperature->sensorType == 0);
    return sim_i32(device->number, "temperature/gpu", &temperature->temperature);
}

NVML_API nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin) {
    ENTER_DEVICE(device);
    REQUIRE(margin != NULL);
    if (margin->version != SIM_VERSION(nvmlMarginTemperature_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return sim_i32(device->number, "temperature/margin", &margin->marginTemperature);
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int threshold,
                                                        unsigned int *degrees) {
    static const char *const keys[] = {
        "temperature/threshold/shutdown",     "temperature/threshold/slowdown",
        "temperature/threshold/memory_max",   "temperature/threshold/gpu_max",
        "temperature/threshold/acoustic_min", "temperature/threshold/acoustic_current",
        "temperature/threshold/acoustic_max", "temperature/threshold/gps_current"};
    ENTER_DEVICE(device);
    const char *key = NAME_OF(keys, threshold);
    REQUIRE(key != NULL && degrees != NULL);
    return sim_u32(device->number, key, degrees);
}

static const char *const clock_names[] = {"graphics", "sm", "memory", "video"};

static nvmlReturn_t read_clock(int gpu, const char *folder, unsigned int clock, nvmlReturn_t unknown,
                               unsigned int *megahertz) {
    char key[64];
    const char *name = NAME_OF(clock_names, clock);
    REQUIRE(megahertz != NULL);
    if (name == NULL)
        return unknown;
    snprintf(key, sizeof key, "clocks/%s/%s", folder, name);
    return sim_u32(gpu, key, megahertz);
}

#define CLOCK_GETTER(function, folder, unknown)                                                              \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, unsigned int clock, unsigned int *megahertz) {       \
        ENTER_DEVICE(device);                                                                                \
        return read_clock(device->number, (folder), clock, (unknown), megahertz);                            \
    }

CLOCK_GETTER(nvmlDeviceGetClockInfo, "current", NVML_ERROR_NOT_SUPPORTED)
CLOCK_GETTER(nvmlDeviceGetMaxClockInfo, "max", NVML_ERROR_INVALID_ARGUMENT)
CLOCK_GETTER(nvmlDeviceGetApplicationsClock, "application", NVML_ERROR_INVALID_ARGUMENT)
CLOCK_GETTER(nvmlDeviceGetDefaultApplicationsClock, "default_application", NVML_ERROR_INVALID_ARGUMENT)
CLOCK_GETTER(nvmlDeviceGetMaxCustomerBoostClock, "max_boost", NVML_ERROR_INVALID_ARGUMENT)

U64_GETTER(nvmlDeviceGetCurrentClocksEventReasons, "clocks/event_reasons")
U64_GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, "clocks/event_reasons")
U64_GETTER(nvmlDeviceGetSupportedClocksEventReasons, "clocks/supported_event_reasons")
U64_GETTER(nvmlDeviceGetSupportedClocksThrottleReasons, "clocks/supported_event_reasons")
TWO_GETTER(nvmlDeviceGetEncoderUtilization, "utilization/encoder", "utilization/sampling_period_us")
TWO_GETTER(nvmlDeviceGetDecoderUtilization, "utilization/decoder", "utilization/sampling_period_us")
TWO_GETTER(nvmlDeviceGetJpgUtilization, "utilization/jpeg", "utilization/sampling_period_us")
TWO_GETTER(nvmlDeviceGetOfaUtilization, "utilization/ofa", "utilization/sampling_period_us")

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    ENTER_DEVICE(device);
    REQUIRE(rates != NULL);
    return answer_two(device->number, "utilization/gpu", &rates->gpu, "utilization/memory", &rates->memory);
}

/* ---- NVLink ---- */

/* A card without links does not know what a link is; on one with links, an index beyond the last is a bad argument. */
static nvmlReturn_t check_link(int gpu, unsigned int link) {
    char path[64];
    char text[SIM_TEXT];
    snprintf(path, sizeof path, "nvlink/%u", link);
    nvmlReturn_t result = sim_file(gpu, path, text, sizeof text);
    if (result != NVML_ERROR_NOT_SUPPORTED)
        return result;
    return sim_link_count(gpu) > 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t read_link(nvmlDevice_t device, unsigned int link, const char *name, unsigned int *value) {
    char key[64];
    unsigned int number = 0;
    REQUIRE(value != NULL);
    TRY(check_link(device->number, link));
    snprintf(key, sizeof key, "nvlink/%u#%s", link, name);
    TRY(sim_u32(device->number, key, &number));
    *value = number;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *state) {
    ENTER_DEVICE(device);
    return read_link(device, link, "state", state);
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version) {
    ENTER_DEVICE(device);
    return read_link(device, link, "version", version);
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, unsigned int *kind) {
    ENTER_DEVICE(device);
    return read_link(device, link, "remote_type", kind);
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, unsigned int capability,
                                                    unsigned int *result) {
    static const char *const names[] = {"cap_p2p",           "cap_sysmem",     "cap_p2p_atomics",
                                        "cap_sysmem_atomics", "cap_sli_bridge", "cap_valid"};
    ENTER_DEVICE(device);
    REQUIRE(result != NULL);
    TRY(check_link(device->number, link));
    const char *name = NAME_OF(names, capability);
    REQUIRE(name != NULL);
    return read_link(device, link, name, result);
}

static const char *const link_errors[] = {"error_replay", "error_recovery", "error_crc_flit", "error_crc_data",
                                          "error_ecc_data"};

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, unsigned int counter,
                                                      unsigned long long *value) {
    char key[64];
    uint64_t number = 0;
    ENTER_DEVICE(device);
    REQUIRE(value != NULL);
    TRY(check_link(device->number, link));
    const char *name = NAME_OF(link_errors, counter);
    REQUIRE(name != NULL);
    snprintf(key, sizeof key, "nvlink/%u#%s", link, name);
    TRY(sim_u64(device->number, key, &number));
    *value = number;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *info) {
    struct bus_id id;
    unsigned int ids[2];
    char key[64];
    ENTER_DEVICE(device);
    REQUIRE(info != NULL);
    TRY(check_link(device->number, link));
    snprintf(key, sizeof key, "nvlink/%u#remote_bus_id", link);
    TRY(read_bus_id(device->number, key, &id));
    TRY(read_link(device, link, "remote_device_id", &ids[0]));
    TRY(read_link(device, link, "remote_subsystem_id", &ids[1]));
    memset(info, 0, sizeof *info);
    write_bus_ids(&id, info->busIdLegacy, info->busId);
    info->domain = id.domain;
    info->bus = id.bus;
    info->device = id.device;
    info->pciDeviceId = ids[0];
    info->pciSubSystemId = ids[1];
    return NVML_SUCCESS;
}

/* ---- fabric ---- */

static nvmlReturn_t read_fabric(int gpu, nvmlGpuFabricInfo_v3_t *info) {
    char text[128];
    unsigned int number = 0;
    TRY(sim_u32(gpu, "fabric/state", &number));
    info->state = (unsigned char)number;
    TRY(answer_two(gpu, "fabric/status", &info->status, "fabric/clique_id", &info->cliqueId));
    TRY(sim_u32(gpu, "fabric/health_mask", &info->healthMask));
    TRY(sim_u32(gpu, "fabric/health_summary", &number));
    info->healthSummary = (unsigned char)number;
    TRY(sim_text(gpu, "fabric/cluster_uuid", text, sizeof text));
    const char *digit = text;
    for (int n = 0; n < 16; n++) {
        char pair[3] = "";
        while (*digit == '-')
            digit++;
        if (!isxdigit((unsigned char)digit[0]) || !isxdigit((unsigned char)digit[1])) {
            sim_debug("fabric/cluster_uuid: '%s' is no UUID", text);
            return NVML_ERROR_UNKNOWN;
        }
        memcpy(pair, digit, 2);
        info->clusterUuid[n] = (unsigned char)strtoul(pair, NULL, 16);
        digit += 2;
    }
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
    nvmlGpuFabricInfo_v3_t newer = {0};
    ENTER_DEVICE(device);
    REQUIRE(info != NULL);
    TRY(read_fabric(device->number, &newer));
    memcpy(info->clusterUuid, newer.clusterUuid, sizeof info->clusterUuid);
    info->status = newer.status;
    info->cliqueId = newer.cliqueId;
    info->state = newer.state;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v2_t *info) {
    nvmlGpuFabricInfo_v3_t newer = {0};
    ENTER_DEVICE(device);
    REQUIRE(info != NULL);
    if (info->version != SIM_VERSION(nvmlGpuFabricInfo_v2_t, 2) && info->version != SIM_VERSION(nvmlGpuFabricInfo_v3_t, 3))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(read_fabric(device->number, &newer));
    memcpy(info->clusterUuid, newer.clusterUuid, sizeof info->clusterUuid);
    info->status = newer.status;
    info->cliqueId = newer.cliqueId;
    info->state = newer.state;
    info->healthMask = newer.healthMask;
    if (info->version == SIM_VERSION(nvmlGpuFabricInfo_v3_t, 3))
        ((nvmlGpuFabricInfo_v3_t *)(void *)info)->healthSummary = newer.healthSummary;
    return NVML_SUCCESS;
}

/* ---- field values ---- */

NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    ENTER_DEVICE(device);
    REQUIRE(count > 0 && values != NULL);
    for (int n = 0; n < count; n++) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        sim_field(device->number, &values[n]);
        values[n].timestamp = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        values[n].latencyUsec = 0;
    }
    return NVML_SUCCESS;
}

/* ---- topology ---- */

static nvmlReturn_t read_level(nvmlDevice_t one, nvmlDevice_t other, unsigned int *level) {
    char key[64];
    snprintf(key, sizeof key, "topology#gpu%d", other->number);
    return sim_u32(one->number, key, level);
}

NVML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned int *level) {
    ENTER_TWO(one, other);
    REQUIRE(level != NULL);
    return one == other ? NVML_ERROR_NOT_SUPPORTED : read_level(one, other, level);
}

NVML_API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned int level, unsigned int *count,
                                                       nvmlDevice_t *nearest) {
    unsigned int found = 0;
    ENTER_DEVICE(device);
    REQUIRE(count != NULL);
    for (unsigned int n = 0; n < device_count; n++) {
        unsigned int have = 0;
        if (&devices[n] == device || read_level(device, &devices[n], &have) != NVML_SUCCESS || have != level)
            continue;
        if (nearest != NULL && found < *count)
            nearest[found] = &devices[n];
        found++;
    }
    if (nearest == NULL || found < *count)
        *count = found;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned int capability,
                                             unsigned int *status) {
    static const char *const names[] = {"read", "write", "nvlink", "atomics", "pci"};
    char key[64];
    ENTER_TWO(one, other);
    REQUIRE(status != NULL);
    const char *name = NAME_OF(names, capability);
    if (name == NULL)
        *status = 0;
    else if (one == other)
        *status = 5;
    else {
        snprintf(key, sizeof key, "p2p/gpu%d#%s", other->number, name);
        return sim_u32(one->number, key, status);
    }
    return NVML_SUCCESS;
}

/* A list like "0-15,128-143" as a bit set. */
static nvmlReturn_t read_set(int gpu, const char *key, unsigned int words, unsigned long *set) {
    char text[SIM_TEXT];
    const unsigned int bits = 8 * sizeof *set;
    REQUIRE(words > 0 && set != NULL);
    TRY(sim_text(gpu, key, text, sizeof text));
    memset(set, 0, words * sizeof *set);
    for (char *at = text, *end = NULL;; at = end + 1) {
        unsigned long first = isdigit((unsigned char)*at) ? strtoul(at, &end, 10) : 1;
        unsigned long last = first;
        if (end != NULL && *end == '-' && isdigit((unsigned char)end[1]))
            last = strtoul(end + 1, &end, 10);
        if (end == NULL || end == at || last < first || last > 65535 || (*end != ',' && *end != '\0')) {
            sim_debug("%s: '%s' is no list like 0-15,32", key, text);
            return NVML_ERROR_UNKNOWN;
        }
        for (unsigned long n = first; n <= last && n / bits < words; n++)
            set[n / bits] |= 1UL << (n % bits);
        if (*end == '\0')
            return NVML_SUCCESS;
    }
}

NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set) {
    ENTER_DEVICE(device);
    return read_set(device->number, "cpu_affinity", words, set);
}

NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                          unsigned int scope) {
    ENTER_DEVICE(device);
    REQUIRE(scope <= 1);
    return read_set(device->number, scope == 0 ? "cpu_affinity" : "cpu_affinity_socket", words, set);
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                  unsigned int scope) {
    ENTER_DEVICE(device);
    REQUIRE(scope <= 1);
    return read_set(device->number, scope == 0 ? "memory_affinity" : "memory_affinity_socket", words, set);
}

NVML_API nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *near) {
    unsigned int found = 0;
    ENTER();
    REQUIRE(count != NULL);
    for (unsigned int n = 0; n < device_count; n++) {
        unsigned long set[1024];
        const unsigned int bits = 8 * sizeof set[0];
        if (cpu / bits >= sizeof set / sizeof set[0] ||
            read_set(devices[n].number, "cpu_affinity", sizeof set / sizeof set[0], set) != NVML_SUCCESS ||
            (set[cpu / bits] & (1UL << (cpu % bits))) == 0)
            continue;
        if (near != NULL && found < *count)
            near[found] = &devices[n];
        found++;
    }
    if (near == NULL || found < *count)
        *count = found;
    return NVML_SUCCESS;
}

/* ---- processes ---- */

struct process {
    unsigned int pid;
    uint64_t memory;
};

/* Lines "<pid> <compute|graphics|mps> <bytes, or - for unknown>". */
static nvmlReturn_t list_processes(int gpu, const char *kind, struct process *list, unsigned int room,
                                   unsigned int *found) {
    char text[65536];
    char *save = NULL;
    *found = 0;
    nvmlReturn_t result = sim_file(gpu, "processes", text, sizeof text);
    if (result == NVML_ERROR_NOT_SUPPORTED)
        return NVML_SUCCESS;
    if (result != NVML_SUCCESS)
        return result;
    char *start = text + strspn(text, " \t\r\n");
    if (*start == '!') {
        start[strcspn(start, " \t\r\n")] = '\0';
        return sim_parse_error("processes", start);
    }
    for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        char *words = NULL;
        line[strcspn(line, "#")] = '\0';
        char *pid_text = strtok_r(line, " \t\r", &words);
        char *kind_text = strtok_r(NULL, " \t\r", &words);
        char *memory_text = strtok_r(NULL, " \t\r", &words);
        uint64_t pid = 0;
        uint64_t memory = UINT64_MAX;
        if (pid_text == NULL)
            continue;
        if (memory_text == NULL || strtok_r(NULL, " \t\r", &words) != NULL) {
            sim_debug("gpu%d/processes: a line is not '<pid> <compute|graphics|mps> <bytes>'", gpu);
            return NVML_ERROR_UNKNOWN;
        }
        TRY(sim_parse_u64("processes", pid_text, &pid));
        if (strcmp(memory_text, "-") != 0)
            TRY(sim_parse_u64("processes", memory_text, &memory));
        if (pid > UINT32_MAX || (strcmp(kind_text, "compute") != 0 && strcmp(kind_text, "graphics") != 0 &&
                                 strcmp(kind_text, "mps") != 0)) {
            sim_debug("gpu%d/processes: bad pid or kind", gpu);
            return NVML_ERROR_UNKNOWN;
        }
        if (strcmp(kind_text, kind) != 0)
            continue;
        if (*found < room)
            list[*found] = (struct process){.pid = (unsigned int)pid, .memory = memory};
        (*found)++;
    }
    return NVML_SUCCESS;
}

#define MAX_PROCESSES 1024

static nvmlReturn_t answer_processes(nvmlDevice_t device, const char *kind, unsigned int *count, void *infos,
                                     bool first_version) {
    struct process list[MAX_PROCESSES];
    unsigned int found = 0;
    REQUIRE(count != NULL);
    TRY(list_processes(device->number, kind, list, MAX_PROCESSES, &found));
    if (found > MAX_PROCESSES)
        return NVML_ERROR_UNKNOWN;
    bool fits = found == 0 || (infos != NULL && found <= *count);
    *count = found;
    if (!fits)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int n = 0; n < found; n++) {
        if (first_version)
            ((nvmlProcessInfo_v1_t *)infos)[n] =
                (nvmlProcessInfo_v1_t){.pid = list[n].pid, .usedGpuMemory = list[n].memory};
        else
            /* No MIG: instance numbers are all ones. */
            ((nvmlProcessInfo_t *)infos)[n] = (nvmlProcessInfo_t){.pid = list[n].pid,
                                                                  .usedGpuMemory = list[n].memory,
                                                                  .gpuInstanceId = UINT32_MAX,
                                                                  .computeInstanceId = UINT32_MAX};
    }
    return NVML_SUCCESS;
}

#define PROCESS_GETTER(function, kind, type, first_version)                                      \
    NVML_API nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, type *infos) {      \
        ENTER_DEVICE(device);                                                                    \
        return answer_processes(device, (kind), count, infos, (first_version));                  \
    }

#define PROCESS_GETTERS(function, kind)                                    \
    PROCESS_GETTER(function, kind, nvmlProcessInfo_v1_t, true)             \
    PROCESS_GETTER(function##_v2, kind, nvmlProcessInfo_t, false)          \
    PROCESS_GETTER(function##_v3, kind, nvmlProcessInfo_t, false)

PROCESS_GETTERS(nvmlDeviceGetComputeRunningProcesses, "compute")
PROCESS_GETTERS(nvmlDeviceGetGraphicsRunningProcesses, "graphics")
PROCESS_GETTERS(nvmlDeviceGetMPSComputeRunningProcesses, "mps")

/* The first word of the real process's command line; for a process that only the state knows, its name there. */
NVML_API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    char key[64];
    char text[SIM_TEXT];
    ENTER();
    REQUIRE(name != NULL && length > 0);
    snprintf(key, sizeof key, "system/process_names#%u", pid);
    nvmlReturn_t result = sim_text(SIM_SYSTEM, key, text, sizeof text);
    if (result == NVML_ERROR_NOT_SUPPORTED) {
        snprintf(key, sizeof key, "/proc/%u/cmdline", pid);
        FILE *file = fopen(key, "re");
        if (file == NULL)
            return NVML_ERROR_NOT_FOUND;
        size_t got = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[got] = '\0';
        result = NVML_SUCCESS;
    }
    if (result != NVML_SUCCESS)
        return result;
    snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}

/* ---- what changes a card ---- */

/* NVML's numbers of architectures. */
enum { AMPERE = 7, HOPPER = 9 };

/* The order of what is wrong: no such GPU, not root, a bad value, a card that lacks it. */
#define ENTER_CHANGE(device)                   \
    do {                                       \
        ENTER_DEVICE(device);                  \
        if (!sim_may_change())                 \
            return NVML_ERROR_NO_PERMISSION;   \
    } while (0)

/* Between these two nobody else writes; the result of the body is what the function answers. */
#define LOCKED(body)                         \
    do {                                     \
        TRY(sim_lock());                     \
        nvmlReturn_t answer = (body);        \
        sim_unlock();                        \
        return answer;                       \
    } while (0)

/* nvml.h: takes effect after the next reboot. What is current lies in run/ for as long as it differs. */
static nvmlReturn_t set_ecc(int gpu, unsigned int mode) {
    unsigned int current = 0, pending = 0;
    TRY(sim_ecc(gpu, &current, &pending));
    if (mode == current) {
        TRY(sim_write_u64(gpu, "ecc/pending", mode));
        return sim_remove(gpu, "ecc/current");
    }
    TRY(sim_write_u64(gpu, "ecc/current", current));
    return sim_write_u64(gpu, "ecc/pending", mode);
}

NVML_API nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, unsigned int mode) {
    ENTER_CHANGE(device);
    REQUIRE(mode <= 1);
    LOCKED(set_ecc(device->number, mode));
}

static nvmlReturn_t clear_ecc(int gpu, const char *counter) {
    static const char *const places[] = {"cbu", "device", "dram", "l1", "l2", "register_file", "sram", "texture", "texture_shm"};
    char key[128];
    TRY(sim_ecc_counts(gpu));
    for (size_t kind = 0; kind < sizeof error_kinds / sizeof error_kinds[0]; kind++)
        for (size_t place = 0; place < sizeof places / sizeof places[0]; place++) {
            uint64_t count = 0;
            snprintf(key, sizeof key, "ecc/%s/%s/%s", counter, error_kinds[kind], places[place]);
            if (sim_u64(gpu, key, &count) == NVML_SUCCESS && count != 0)
                TRY(sim_write_u64(gpu, key, 0));
        }
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, unsigned int counter) {
    unsigned int architecture = 0;
    ENTER_CHANGE(device);
    const char *name = NAME_OF(counter_kinds, counter);
    REQUIRE(name != NULL);
    TRY(sim_u32(device->number, "architecture", &architecture));
    /* From Ampere on the counts of the card's life cannot be cleared. */
    if (counter == 1 && architecture >= AMPERE)
        return NVML_ERROR_NOT_SUPPORTED;
    LOCKED(clear_ecc(device->number, name));
}

static nvmlReturn_t set_power_limit(int gpu, unsigned int milliwatts) {
    unsigned int lowest = 0, highest = 0, now = 0;
    TRY(answer_two(gpu, "power/min_limit", &lowest, "power/max_limit", &highest));
    TRY(sim_u32(gpu, "power/limit", &now));
    REQUIRE(milliwatts >= lowest && milliwatts <= highest);
    return sim_write_u64(gpu, "power/limit", milliwatts);
}

NVML_API nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int milliwatts) {
    ENTER_CHANGE(device);
    LOCKED(set_power_limit(device->number, milliwatts));
}

NVML_API nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, const nvmlPowerValue_v2_t *value) {
    ENTER_CHANGE(device);
    REQUIRE(value != NULL);
    if (value->version != SIM_VERSION(nvmlPowerValue_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    REQUIRE(value->powerScope <= 2);
    /* Modules (Grace and GPU) and memory are not simulated. */
    if (value->powerScope != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    LOCKED(set_power_limit(device->number, value->powerValueMw));
}

static nvmlReturn_t set_persistence(int gpu, unsigned int mode) {
    unsigned int now = 0;
    TRY(sim_u32(gpu, "persistence_mode", &now));
    return sim_write_u64(gpu, "persistence_mode", mode);
}

NVML_API nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode) {
    ENTER_CHANGE(device);
    REQUIRE(mode <= 1);
    LOCKED(set_persistence(device->number, mode));
}

static nvmlReturn_t is_used(int gpu, bool *used) {
    static const char *const kinds[] = {"compute", "graphics", "mps"};
    *used = false;
    for (size_t n = 0; n < sizeof kinds / sizeof kinds[0]; n++) {
        unsigned int found = 0;
        TRY(list_processes(gpu, kinds[n], NULL, 0, &found));
        *used = *used || found > 0;
    }
    return NVML_SUCCESS;
}

/* Ampere keeps the mode over a reboot, Hopper and later do not (README.md: sources). Either way this call resets the GPU
 * to activate it, when nothing uses it (nvml.h). */
static nvmlReturn_t set_mig(int gpu, unsigned int mode, nvmlReturn_t *status) {
    unsigned int current = 0, pending = 0, architecture = 0;
    char text[2] = {(char)('0' + mode), '\0'};
    bool used = false;
    TRY(sim_mig(gpu, &current, &pending));
    TRY(sim_u32(gpu, "architecture", &architecture));
    *status = NVML_SUCCESS;
    TRY(is_used(gpu, &used));
    if (mode != current && used) {
        char number[2] = {(char)('0' + current), '\0'};
        *status = NVML_ERROR_IN_USE;
        TRY(sim_write(gpu, "mig/current", number));
    }
    TRY(architecture >= HOPPER ? sim_write_volatile(gpu, "mig/pending", text) : sim_write(gpu, "mig/pending", text));
    return *status == NVML_SUCCESS ? sim_remove(gpu, "mig/current") : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *status) {
    ENTER_CHANGE(device);
    REQUIRE(mode <= 1 && status != NULL);
    LOCKED(set_mig(device->number, mode, status));
}

static nvmlReturn_t clear_link(int gpu, unsigned int link) {
    char key[64];
    TRY(check_link(gpu, link));
    for (size_t n = 0; n < sizeof link_errors / sizeof link_errors[0]; n++) {
        uint64_t count = 0;
        snprintf(key, sizeof key, "nvlink/%u#%s", link, link_errors[n]);
        if (sim_u64(gpu, key, &count) == NVML_SUCCESS && count != 0)
            TRY(sim_write_u64(gpu, key, 0));
    }
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceResetNvLinkErrorCounters(nvmlDevice_t device, unsigned int link) {
    ENTER_CHANGE(device);
    LOCKED(clear_link(device->number, link));
}
