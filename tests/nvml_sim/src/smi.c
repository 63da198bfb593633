/* Copyright (c) 2026, The baremetal.inference contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The invocations of nvidia-smi that shell tasks use, over whatever libnvidia-ml.so.1 the loader finds, in the format of
 * the real one. README.md says which, and where the texts come from. Everything else is refused with exit code 2.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "reset.h"
#include "state.h"

/* nvidia-smi(1), "RETURN VALUE"; they are NVML's own numbers. */
enum { EXIT_ARGUMENT = 2, EXIT_NOT_FOUND = 6, EXIT_LIBRARY = 12, EXIT_OTHER = 255 };

static void *library;

struct gpu {
    unsigned int index;
    nvmlDevice_t device;
    nvmlReturn_t error; /* of asking for the handle */
    char bus_id[32];
    bool chosen;
};

static struct gpu gpus[SIM_MAX_GPUS];
static unsigned int gpu_count;

/* Each type of function that is called. */
typedef nvmlReturn_t (*plain_function)(void);
typedef const char *(*text_function)(nvmlReturn_t);
typedef nvmlReturn_t (*count_function)(unsigned int *);
typedef nvmlReturn_t (*handle_function)(unsigned int, nvmlDevice_t *);
typedef nvmlReturn_t (*system_text)(char *, unsigned int);
typedef nvmlReturn_t (*device_text)(nvmlDevice_t, char *, unsigned int);
typedef nvmlReturn_t (*device_number)(nvmlDevice_t, unsigned int *);
typedef nvmlReturn_t (*device_bits)(nvmlDevice_t, unsigned long long *);
typedef nvmlReturn_t (*device_two)(nvmlDevice_t, unsigned int *, unsigned int *);
typedef nvmlReturn_t (*device_capability)(nvmlDevice_t, int *, int *);
typedef nvmlReturn_t (*device_kind)(nvmlDevice_t, unsigned int, unsigned int *);
typedef nvmlReturn_t (*device_errors)(nvmlDevice_t, unsigned int, unsigned int, unsigned long long *);
typedef nvmlReturn_t (*device_memory)(nvmlDevice_t, nvmlMemory_v2_t *);
typedef nvmlReturn_t (*device_fields)(nvmlDevice_t, int, nvmlFieldValue_t *);
typedef nvmlReturn_t (*device_set)(nvmlDevice_t, unsigned int);

/* A function by name; one that the library lacks answers as NVML's callers do. */
static nvmlReturn_t lacking(void) {
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

static plain_function find(const char *name) {
    plain_function function = NULL;
    *(void **)(void *)&function = dlsym(library, name);
    return function != NULL ? function : lacking;
}

#define CALL(type, name) ((type)(void (*)(void))find(name))

static const char *error_text(nvmlReturn_t code) {
    return CALL(text_function, "nvmlErrorString")(code);
}

static int exit_code(nvmlReturn_t code) {
    static const nvmlReturn_t documented[] = {2, 3, 4, 6, 8, 9, 10, 12, 13, 14, 15};
    for (size_t n = 0; n < sizeof documented / sizeof documented[0]; n++)
        if (documented[n] == code)
            return (int)code;
    return code == NVML_SUCCESS ? 0 : EXIT_OTHER;
}

/* ---- --query-gpu ---- */

enum kind {
    TEXT,     /* device_text of `function` */
    NUMBER,   /* device_number */
    BITS,     /* device_bits, as hexadecimal */
    MODE,     /* device_number: Enabled or Disabled */
    WATTS,    /* device_number: milliwatts */
    LOWER,    /* first of device_two, milliwatts */
    UPPER,    /* second of device_two, milliwatts */
    NOW,      /* first of device_two: Enabled or Disabled */
    LATER,    /* second */
    FIRST,    /* first of device_two, a number */
    SECOND,   /* second */
    CLOCK,    /* device_kind of kind `argument` */
    ERRORS,   /* device_errors: kind `argument` / 2, counter `argument` % 2 */
    MEMORY,   /* `argument`: 0 total, 1 reserved, 2 used, 3 free */
    FIELD,    /* field value number `argument` */
    PSTATE,   /* device_number */
    INDEX,    /* what NVML was asked with */
    BUS_ID,   /* the same */
    DRIVER,   /* of the system */
    COUNT,    /* of the system */
    COMPUTE,  /* capability */
};

struct field {
    const char *name;
    const char *other_name;
    const char *unit;
    enum kind kind;
    const char *function;
    unsigned int argument;
};

static const struct field fields[] = {
    {"clocks.current.graphics", "clocks.gr", "MHz", CLOCK, "nvmlDeviceGetClockInfo", 0},
    {"clocks.current.memory", "clocks.mem", "MHz", CLOCK, "nvmlDeviceGetClockInfo", 2},
    {"clocks.current.sm", "clocks.sm", "MHz", CLOCK, "nvmlDeviceGetClockInfo", 1},
    {"clocks.max.graphics", "clocks.max.gr", "MHz", CLOCK, "nvmlDeviceGetMaxClockInfo", 0},
    {"clocks.max.memory", "clocks.max.mem", "MHz", CLOCK, "nvmlDeviceGetMaxClockInfo", 2},
    {"clocks.max.sm", "clocks.max.sm", "MHz", CLOCK, "nvmlDeviceGetMaxClockInfo", 1},
    {"clocks_event_reasons.active", "clocks_throttle_reasons.active", NULL, BITS,
     "nvmlDeviceGetCurrentClocksEventReasons", 0},
    {"compute_cap", NULL, NULL, COMPUTE, "nvmlDeviceGetCudaComputeCapability", 0},
    {"count", NULL, NULL, COUNT, NULL, 0},
    {"driver_version", NULL, NULL, DRIVER, "nvmlSystemGetDriverVersion", 0},
    {"ecc.errors.corrected.aggregate.total", NULL, NULL, ERRORS, "nvmlDeviceGetTotalEccErrors", 1},
    {"ecc.errors.corrected.volatile.total", NULL, NULL, ERRORS, "nvmlDeviceGetTotalEccErrors", 0},
    {"ecc.errors.uncorrected.aggregate.total", NULL, NULL, ERRORS, "nvmlDeviceGetTotalEccErrors", 3},
    {"ecc.errors.uncorrected.volatile.total", NULL, NULL, ERRORS, "nvmlDeviceGetTotalEccErrors", 2},
    {"ecc.mode.current", NULL, NULL, NOW, "nvmlDeviceGetEccMode", 0},
    {"ecc.mode.pending", NULL, NULL, LATER, "nvmlDeviceGetEccMode", 0},
    {"enforced.power.limit", NULL, "W", WATTS, "nvmlDeviceGetEnforcedPowerLimit", 0},
    {"index", NULL, NULL, INDEX, NULL, 0},
    {"memory.free", NULL, "MiB", MEMORY, NULL, 3},
    {"memory.reserved", NULL, "MiB", MEMORY, NULL, 1},
    {"memory.total", NULL, "MiB", MEMORY, NULL, 0},
    {"memory.used", NULL, "MiB", MEMORY, NULL, 2},
    {"mig.mode.current", NULL, NULL, NOW, "nvmlDeviceGetMigMode", 0},
    {"mig.mode.pending", NULL, NULL, LATER, "nvmlDeviceGetMigMode", 0},
    {"name", "gpu_name", NULL, TEXT, "nvmlDeviceGetName", 0},
    {"pci.bus_id", "gpu_bus_id", NULL, BUS_ID, NULL, 0},
    {"pcie.link.gen.current", NULL, NULL, NUMBER, "nvmlDeviceGetCurrPcieLinkGeneration", 0},
    {"pcie.link.gen.gpumax", NULL, NULL, NUMBER, "nvmlDeviceGetGpuMaxPcieLinkGeneration", 0},
    {"pcie.link.gen.max", NULL, NULL, NUMBER, "nvmlDeviceGetMaxPcieLinkGeneration", 0},
    {"pcie.link.width.current", NULL, NULL, NUMBER, "nvmlDeviceGetCurrPcieLinkWidth", 0},
    {"pcie.link.width.max", NULL, NULL, NUMBER, "nvmlDeviceGetMaxPcieLinkWidth", 0},
    {"persistence_mode", NULL, NULL, MODE, "nvmlDeviceGetPersistenceMode", 0},
    {"power.default_limit", NULL, "W", WATTS, "nvmlDeviceGetPowerManagementDefaultLimit", 0},
    {"power.draw", NULL, "W", WATTS, "nvmlDeviceGetPowerUsage", 0},
    {"power.limit", NULL, "W", WATTS, "nvmlDeviceGetPowerManagementLimit", 0},
    {"power.max_limit", NULL, "W", UPPER, "nvmlDeviceGetPowerManagementLimitConstraints", 0},
    {"power.min_limit", NULL, "W", LOWER, "nvmlDeviceGetPowerManagementLimitConstraints", 0},
    {"pstate", NULL, NULL, PSTATE, "nvmlDeviceGetPerformanceState", 0},
    {"serial", "gpu_serial", NULL, TEXT, "nvmlDeviceGetSerial", 0},
    {"temperature.gpu", NULL, NULL, CLOCK, "nvmlDeviceGetTemperature", 0},
    {"temperature.memory", NULL, NULL, FIELD, NULL, 82},
    {"utilization.gpu", NULL, "%", FIRST, "nvmlDeviceGetUtilizationRates", 0},
    {"utilization.memory", NULL, "%", SECOND, "nvmlDeviceGetUtilizationRates", 0},
    {"uuid", "gpu_uuid", NULL, TEXT, "nvmlDeviceGetUUID", 0},
    {"vbios_version", NULL, NULL, TEXT, "nvmlDeviceGetVbiosVersion", 0},
};

static const struct field *field_of(const char *name) {
    for (size_t n = 0; n < sizeof fields / sizeof fields[0]; n++)
        if (strcmp(fields[n].name, name) == 0 || (fields[n].other_name != NULL && strcmp(fields[n].other_name, name) == 0))
            return &fields[n];
    return NULL;
}

static const char *on_off(unsigned int mode) {
    return mode != 0 ? "Enabled" : "Disabled";
}

static nvmlReturn_t memory_mib(nvmlDevice_t device, unsigned int which, unsigned long long *mib) {
    nvmlMemory_v2_t memory = {.version = SIM_VERSION(nvmlMemory_v2_t, 2)};
    nvmlReturn_t result = CALL(device_memory, "nvmlDeviceGetMemoryInfo_v2")(device, &memory);
    const unsigned long long values[] = {memory.total, memory.reserved, memory.used, memory.free};
    *mib = values[which] >> 20;
    return result;
}

/* The value without its unit. */
static nvmlReturn_t value_of(const struct field *field, const struct gpu *gpu, char *out, size_t size) {
    nvmlReturn_t result = NVML_SUCCESS;
    unsigned int one = 0, two = 0;
    unsigned long long big = 0;
    int major = 0, minor = 0;
    nvmlFieldValue_t value = {.fieldId = field->argument};
    nvmlUtilization_t rates = {0, 0};
    switch (field->kind) {
    case TEXT:
        return CALL(device_text, field->function)(gpu->device, out, (unsigned int)size);
    case DRIVER:
        return CALL(system_text, field->function)(out, (unsigned int)size);
    case NUMBER:
    case MODE:
    case WATTS:
    case PSTATE:
        result = CALL(device_number, field->function)(gpu->device, &one);
        break;
    case LOWER:
    case UPPER:
    case NOW:
    case LATER:
        result = CALL(device_two, field->function)(gpu->device, &one, &two);
        break;
    case FIRST:
    case SECOND:
        result = ((nvmlReturn_t(*)(nvmlDevice_t, nvmlUtilization_t *))(void (*)(void))find(field->function))(gpu->device, &rates);
        one = rates.gpu;
        two = rates.memory;
        break;
    case CLOCK:
        result = CALL(device_kind, field->function)(gpu->device, field->argument, &one);
        break;
    case BITS:
        result = CALL(device_bits, field->function)(gpu->device, &big);
        break;
    case ERRORS:
        result = CALL(device_errors, field->function)(gpu->device, field->argument / 2, field->argument % 2, &big);
        break;
    case MEMORY:
        result = memory_mib(gpu->device, field->argument, &big);
        break;
    case FIELD:
        result = CALL(device_fields, "nvmlDeviceGetFieldValues")(gpu->device, 1, &value);
        result = result == NVML_SUCCESS ? value.nvmlReturn : result;
        one = value.value.uiVal;
        break;
    case COMPUTE:
        result = CALL(device_capability, field->function)(gpu->device, &major, &minor);
        break;
    case INDEX:
    case BUS_ID:
    case COUNT:
        break;
    }
    if (result != NVML_SUCCESS)
        return result;
    switch (field->kind) {
    case MODE:
    case NOW:
        snprintf(out, size, "%s", on_off(one));
        break;
    case LATER:
        snprintf(out, size, "%s", on_off(two));
        break;
    case WATTS:
    case LOWER:
        snprintf(out, size, "%u.%02u", one / 1000, one % 1000 / 10);
        break;
    case UPPER:
        snprintf(out, size, "%u.%02u", two / 1000, two % 1000 / 10);
        break;
    case PSTATE:
        snprintf(out, size, "P%u", one);
        break;
    case SECOND:
        snprintf(out, size, "%u", two);
        break;
    case BITS:
        snprintf(out, size, "0x%016llX", big);
        break;
    case ERRORS:
    case MEMORY:
        snprintf(out, size, "%llu", big);
        break;
    case COMPUTE:
        snprintf(out, size, "%d.%d", major, minor);
        break;
    case INDEX:
        snprintf(out, size, "%u", gpu->index);
        break;
    case BUS_ID:
        snprintf(out, size, "%s", gpu->bus_id);
        break;
    case COUNT:
        snprintf(out, size, "%u", gpu_count);
        break;
    default:
        snprintf(out, size, "%u", one);
        break;
    }
    return NVML_SUCCESS;
}

static int query(char *names, bool header, bool units) {
    const struct field *wanted[64];
    size_t count = 0;
    char *save = NULL;
    int code = 0;
    for (char *name = strtok_r(names, ", ", &save); name != NULL; name = strtok_r(NULL, ", ", &save)) {
        const struct field *field = field_of(name);
        if (field == NULL || count == sizeof wanted / sizeof wanted[0]) {
            printf("Field \"%s\" is not a valid field to query.\n\n", name);
            return EXIT_ARGUMENT;
        }
        wanted[count++] = field;
    }
    if (header)
        for (size_t n = 0; n < count; n++)
            printf("%s%s%s%s%s", n == 0 ? "" : ", ", wanted[n]->name, wanted[n]->unit != NULL ? " [" : "",
                   wanted[n]->unit != NULL ? wanted[n]->unit : "", wanted[n]->unit != NULL ? "]" : "");
    if (header)
        putchar('\n');
    for (unsigned int g = 0; g < gpu_count; g++) {
        if (!gpus[g].chosen)
            continue;
        if (gpus[g].error != NVML_SUCCESS) {
            /* The bus id in the form that sysfs has. */
            fprintf(stderr, "Unable to determine the device handle for GPU%u: %s: %s\n", g, gpus[g].bus_id + 4,
                    error_text(gpus[g].error));
            code = exit_code(gpus[g].error);
            continue;
        }
        for (size_t n = 0; n < count; n++) {
            char value[128];
            nvmlReturn_t result = value_of(wanted[n], &gpus[g], value, sizeof value);
            const char *separator = n == 0 ? "" : ", ";
            if (result == NVML_ERROR_NOT_SUPPORTED)
                printf("%s[N/A]", separator);
            else if (result != NVML_SUCCESS)
                printf("%s[%s]", separator, error_text(result));
            else
                printf("%s%s%s%s", separator, value, units && wanted[n]->unit != NULL ? " " : "",
                       units && wanted[n]->unit != NULL ? wanted[n]->unit : "");
        }
        putchar('\n');
    }
    return code;
}

/* ---- lists ---- */

static void print_title(const struct gpu *gpu) {
    char name[96] = "Unknown", uuid[96] = "Unknown";
    CALL(device_text, "nvmlDeviceGetName")(gpu->device, name, sizeof name);
    CALL(device_text, "nvmlDeviceGetUUID")(gpu->device, uuid, sizeof uuid);
    printf("GPU %u: %s (UUID: %s)\n", gpu->index, name, uuid);
}

/* Says so where a GPU has no handle. */
static bool has_handle(const struct gpu *gpu, int *code) {
    if (gpu->error == NVML_SUCCESS)
        return true;
    fprintf(stderr, "Unable to determine the device handle for GPU%u: %s: %s\n", gpu->index, gpu->bus_id + 4,
            error_text(gpu->error));
    *code = exit_code(gpu->error);
    return false;
}

static int list(void) {
    int code = 0;
    for (unsigned int g = 0; g < gpu_count; g++)
        if (gpus[g].chosen && has_handle(&gpus[g], &code))
            print_title(&gpus[g]);
    return code;
}

#define MAX_LINKS 36

static nvmlReturn_t link_number(const struct gpu *gpu, const char *function, unsigned int link, unsigned int *value) {
    return CALL(device_kind, function)(gpu->device, link, value);
}

static void print_link_status(const struct gpu *gpu, unsigned int link, unsigned int state) {
    nvmlFieldValue_t speed = {.fieldId = 164, .scopeId = link};
    CALL(device_fields, "nvmlDeviceGetFieldValues")(gpu->device, 1, &speed);
    if (state == 0)
        printf("\t Link %u: <inactive>\n", link);
    else if (speed.nvmlReturn != NVML_SUCCESS)
        printf("\t Link %u: <%s>\n", link, error_text(speed.nvmlReturn));
    else if (speed.value.uiVal % 1000 == 0)
        printf("\t Link %u: %u GB/s\n", link, speed.value.uiVal / 1000);
    else
        printf("\t Link %u: %u.%03u GB/s\n", link, speed.value.uiVal / 1000, speed.value.uiVal % 1000);
}

static void print_link_errors(const struct gpu *gpu, unsigned int link) {
    static const char *const names[] = {"Replay", "Recovery", "CRC"};
    if (link > 0)
        putchar('\n');
    for (unsigned int counter = 0; counter < 3; counter++) {
        unsigned long long value = 0;
        nvmlReturn_t result = CALL(device_errors, "nvmlDeviceGetNvLinkErrorCounter")(gpu->device, link, counter, &value);
        if (result == NVML_SUCCESS)
            printf("\t Link %u: %s Errors: %llu\n", link, names[counter], value);
        else
            printf("\t Link %u: %s Errors: <%s>\n", link, names[counter], error_text(result));
    }
}

static int nvlink(char what) {
    int code = 0;
    for (unsigned int g = 0; g < gpu_count; g++) {
        unsigned int link = 0, state = 0;
        nvmlReturn_t result = NVML_SUCCESS;
        if (!gpus[g].chosen || !has_handle(&gpus[g], &code))
            continue;
        print_title(&gpus[g]);
        for (; link < MAX_LINKS && link_number(&gpus[g], "nvmlDeviceGetNvLinkState", link, &state) == NVML_SUCCESS; link++) {
            if (what == 's')
                print_link_status(&gpus[g], link, state);
            else if (what == 'e')
                print_link_errors(&gpus[g], link);
            else if (result == NVML_SUCCESS)
                result = CALL(device_set, "nvmlDeviceResetNvLinkErrorCounters")(gpus[g].device, link);
        }
        if (what == 'r' && result != NVML_SUCCESS) {
            printf("\t Unable to reset error counters: %s\n", error_text(result));
            return exit_code(result);
        }
        if (what == 'r' && link > 0)
            printf("\t All links (0-%u): error counters reset\n\n", link - 1);
    }
    return code;
}

/* ---- changes ---- */

static int fail(nvmlReturn_t result) {
    puts("Terminating early due to previous errors.");
    return exit_code(result);
}

static void warn_persistence(const struct gpu *gpu) {
    unsigned int mode = 1;
    if (CALL(device_number, "nvmlDeviceGetPersistenceMode")(gpu->device, &mode) == NVML_SUCCESS && mode == 0)
        printf("\nWarning: persistence mode is disabled on device %s. See the Known Issues section of the nvidia-smi(1) "
               "man page for more information. Run with [--help | -h] switch to get more information on how to enable "
               "persistence mode.\n",
               gpu->bus_id);
}

static nvmlReturn_t set_ecc(const struct gpu *gpu, unsigned int mode, bool *changed) {
    unsigned int current = 0, pending = 0;
    nvmlReturn_t result = CALL(device_two, "nvmlDeviceGetEccMode")(gpu->device, &current, &pending);
    if (result == NVML_SUCCESS && pending == mode) {
        printf("ECC support is already %s for GPU %s.\n", on_off(mode), gpu->bus_id);
        return NVML_SUCCESS;
    }
    if (result == NVML_SUCCESS)
        result = CALL(device_set, "nvmlDeviceSetEccMode")(gpu->device, mode);
    if (result == NVML_SUCCESS) {
        *changed = true;
        printf("%s ECC support for GPU %s.\n", on_off(mode), gpu->bus_id);
    } else if (result == NVML_ERROR_NOT_SUPPORTED) {
        printf("ECC support is not available for GPU %s.\nTreating as warning and moving on.\n", gpu->bus_id);
    } else {
        printf("Unable to set ECC mode for GPU %s: %s\n", gpu->bus_id, error_text(result));
    }
    return result;
}

static nvmlReturn_t set_persistence(const struct gpu *gpu, unsigned int mode) {
    unsigned int now = 0;
    nvmlReturn_t result = CALL(device_number, "nvmlDeviceGetPersistenceMode")(gpu->device, &now);
    if (result == NVML_SUCCESS && now == mode) {
        printf("Persistence mode is already %s for GPU %s.\n", on_off(mode), gpu->bus_id);
        return NVML_SUCCESS;
    }
    if (result == NVML_SUCCESS)
        result = CALL(device_set, "nvmlDeviceSetPersistenceMode")(gpu->device, mode);
    if (result == NVML_SUCCESS)
        printf("%s persistence mode for GPU %s.\n", on_off(mode), gpu->bus_id);
    else
        printf("Unable to set persistence mode for GPU %s: %s\n", gpu->bus_id, error_text(result));
    return result;
}

static nvmlReturn_t set_power(const struct gpu *gpu, unsigned int milliwatts) {
    unsigned int before = 0, lowest = 0, highest = 0;
    nvmlReturn_t result = CALL(device_number, "nvmlDeviceGetPowerManagementLimit")(gpu->device, &before);
    if (result == NVML_SUCCESS)
        result = CALL(device_two, "nvmlDeviceGetPowerManagementLimitConstraints")(gpu->device, &lowest, &highest);
    if (result == NVML_SUCCESS && (milliwatts < lowest || milliwatts > highest)) {
        printf("Provided power limit %u.%02u W is not a valid power limit which should be between %u.%02u W and %u.%02u W "
               "for GPU %s\n",
               milliwatts / 1000, milliwatts % 1000 / 10, lowest / 1000, lowest % 1000 / 10, highest / 1000,
               highest % 1000 / 10, gpu->bus_id);
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result == NVML_SUCCESS)
        result = CALL(device_set, "nvmlDeviceSetPowerManagementLimit")(gpu->device, milliwatts);
    if (result == NVML_SUCCESS) {
        printf("Power limit for GPU %s was set to %u.%02u W from %u.%02u W.\n", gpu->bus_id, milliwatts / 1000,
               milliwatts % 1000 / 10, before / 1000, before % 1000 / 10);
        warn_persistence(gpu);
    } else if (result == NVML_ERROR_NOT_SUPPORTED) {
        printf("Changing power management limit is not supported for GPU: %s.\nTreating as warning and moving on.\n",
               gpu->bus_id);
    } else {
        printf("Failed to set power management limit for GPU %s: %s\n", gpu->bus_id, error_text(result));
    }
    return result;
}

static int change(char what, unsigned int value) {
    bool reboot = false;
    int code = 0;
    for (unsigned int g = 0; g < gpu_count; g++) {
        nvmlReturn_t result = NVML_SUCCESS;
        if (!gpus[g].chosen || !has_handle(&gpus[g], &code))
            continue;
        if (what == 'e')
            result = set_ecc(&gpus[g], value, &reboot);
        else if (what == 'm')
            result = set_persistence(&gpus[g], value);
        else
            result = set_power(&gpus[g], value);
        if (result != NVML_SUCCESS && result != NVML_ERROR_NOT_SUPPORTED)
            return fail(result);
    }
    puts("All done.");
    if (reboot)
        puts("Reboot required.");
    return code;
}

/* NVML has no reset, so that this one works on the state itself. */
static int reset(void) {
    nvmlReturn_t results[SIM_MAX_GPUS];
    int numbers[SIM_MAX_GPUS];
    unsigned int there = 0, failed = 0, used = 0;
    nvmlReturn_t worst = sim_list_gpus(numbers, &there);
    if (worst != NVML_SUCCESS)
        return exit_code(worst);
    for (unsigned int g = 0; g < gpu_count && g < there; g++) {
        if (!gpus[g].chosen)
            continue;
        results[g] = sim_reset(numbers[g]);
        if (results[g] == NVML_SUCCESS) {
            printf("GPU %s was successfully reset.\n", gpus[g].bus_id);
            continue;
        }
        failed++;
        used += results[g] == NVML_ERROR_IN_USE;
        worst = results[g];
    }
    if (failed == 0)
        return 0;
    puts("The following GPUs could not be reset:");
    for (unsigned int g = 0; g < gpu_count && g < there; g++)
        if (gpus[g].chosen && results[g] != NVML_SUCCESS)
            printf("  GPU %s: %s\n", gpus[g].bus_id, error_text(results[g]));
    putchar('\n');
    if (used > 0)
        printf("%u %s currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics "
               "application such as an X server, or a monitoring application such as another instance of nvidia-smi). "
               "Please first kill all processes using %s and all compute applications running in the system.\n",
               used, used == 1 ? "device is" : "devices are", used == 1 ? "this device" : "these devices");
    return exit_code(worst);
}

/* ---- command line ---- */

struct options {
    char what; /* L q e m p r, or within nvlink: s E R */
    bool in_nvlink, header, units;
    char *fields;
    const char *ids;
    unsigned int value;
};

static int refuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    return EXIT_ARGUMENT;
}

/* "--name=value", "--name value", "-n value": the value, and how many words it took. */
static char *value_for(int count, char **words, int *at, const char *brief, const char *full) {
    size_t length = strlen(full);
    char *word = words[*at];
    if (strncmp(word, full, length) == 0 && word[length] == '=')
        return word + length + 1;
    if ((strcmp(word, full) == 0 || strcmp(word, brief) == 0) && *at + 1 < count)
        return words[++*at];
    return NULL;
}

static bool is_word(const char *word, const char *brief, const char *full) {
    return strcmp(word, brief) == 0 || strcmp(word, full) == 0;
}

static bool parse_mode(const char *text, unsigned int *mode) {
    if (strcmp(text, "0") == 0 || strcmp(text, "DISABLED") == 0)
        *mode = 0;
    else if (strcmp(text, "1") == 0 || strcmp(text, "ENABLED") == 0)
        *mode = 1;
    else
        return false;
    return true;
}

static bool parse_watts(const char *text, unsigned int *milliwatts) {
    char *end = NULL;
    double watts = strtod(text, &end);
    if (end == text || *end != '\0' || !(watts >= 0 && watts < 1e6))
        return false;
    *milliwatts = (unsigned int)(watts * 1000 + 0.5);
    return true;
}

static int parse_format(char *text, struct options *options) {
    bool csv = false;
    char *save = NULL;
    for (char *word = strtok_r(text, ", ", &save); word != NULL; word = strtok_r(NULL, ", ", &save)) {
        if (strcmp(word, "csv") == 0)
            csv = true;
        else if (strcmp(word, "noheader") == 0)
            options->header = false;
        else if (strcmp(word, "nounits") == 0)
            options->units = false;
        else
            return refuse("\"%s\" is no format that is simulated: csv, noheader, nounits.", word);
    }
    return csv ? 0 : refuse("The format must begin with csv.");
}

static int only_once(struct options *options, char what) {
    if (options->what != '\0' && options->what != what)
        return refuse("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.");
    options->what = what;
    return 0;
}

static int parse_nvlink(int count, char **words, struct options *options) {
    int code = 0;
    options->in_nvlink = true;
    for (int at = 2; code == 0 && at < count; at++) {
        char *value = value_for(count, words, &at, "-i", "--id");
        if (value != NULL)
            options->ids = value;
        else if (is_word(words[at], "-s", "--status"))
            code = only_once(options, 's');
        else if (is_word(words[at], "-e", "--errorcounters"))
            code = only_once(options, 'e');
        else if (is_word(words[at], "-re", "--reseterrorcounters"))
            code = only_once(options, 'r');
        else
            code = refuse("Option \"%s\" of nvlink is not simulated: -s, -e, -re, -i.", words[at]);
    }
    if (code == 0 && options->what == '\0')
        code = refuse("nvlink needs one of -s, -e, -re.");
    return code;
}

static int parse(int count, char **words, struct options *options) {
    int code = 0;
    bool formatted = false;
    if (count > 1 && strcmp(words[1], "nvlink") == 0)
        return parse_nvlink(count, words, options);
    for (int at = 1; code == 0 && at < count; at++) {
        char *value;
        if ((value = value_for(count, words, &at, "-i", "--id")) != NULL) {
            options->ids = value;
        } else if ((value = value_for(count, words, &at, "", "--query-gpu")) != NULL) {
            code = only_once(options, 'q');
            options->fields = value;
        } else if ((value = value_for(count, words, &at, "", "--format")) != NULL) {
            formatted = true;
            code = parse_format(value, options);
        } else if ((value = value_for(count, words, &at, "-e", "--ecc-config")) != NULL) {
            code = only_once(options, 'e');
            if (code == 0 && !parse_mode(value, &options->value))
                code = refuse("\"%s\" is no mode of ECC: 0/DISABLED, 1/ENABLED.", value);
        } else if ((value = value_for(count, words, &at, "-pm", "--persistence-mode")) != NULL) {
            code = only_once(options, 'm');
            if (code == 0 && !parse_mode(value, &options->value))
                code = refuse("\"%s\" is no persistence mode: 0/DISABLED, 1/ENABLED.", value);
        } else if ((value = value_for(count, words, &at, "-pl", "--power-limit")) != NULL) {
            code = only_once(options, 'p');
            if (code == 0 && !parse_watts(value, &options->value))
                code = refuse("\"%s\" is no power limit in watts.", value);
        } else if (is_word(words[at], "-r", "--gpu-reset")) {
            code = only_once(options, 'r');
        } else if (is_word(words[at], "-L", "--list-gpus")) {
            code = only_once(options, 'L');
        } else {
            code = refuse("Option \"%s\" is not simulated: -L, -e, -pm, -pl, -r, -i, --query-gpu, --format, nvlink.", words[at]);
        }
    }
    if (code == 0 && options->what == '\0')
        code = refuse("What to do is not simulated without an option: -L, -e, -pm, -pl, -r, --query-gpu, nvlink.");
    if (code == 0 && (options->what == 'q') != formatted)
        code = refuse("--query-gpu and --format=csv go together.");
    return code;
}

/* ---- session ---- */

static int start(void) {
    int numbers[SIM_MAX_GPUS];
    unsigned int there = 0;
    library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL) {
        puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
             "Driver is properly installed and present in your system.");
        return EXIT_LIBRARY;
    }
    nvmlReturn_t result = find("nvmlInit_v2")();
    if (result == NVML_ERROR_DRIVER_NOT_LOADED) {
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
             "driver is installed and running.\n");
        return (int)result;
    }
    if (result == NVML_ERROR_GPU_NOT_FOUND) {
        puts("No devices were found");
        return EXIT_NOT_FOUND;
    }
    if (result == NVML_SUCCESS)
        result = CALL(count_function, "nvmlDeviceGetCount_v2")(&gpu_count);
    if (result != NVML_SUCCESS) {
        printf("Failed to initialize NVML: %s\n", error_text(result));
        return exit_code(result) == EXIT_OTHER ? (int)result & 0xFF : exit_code(result);
    }
    if (gpu_count > SIM_MAX_GPUS)
        gpu_count = SIM_MAX_GPUS;
    sim_choose_directory();
    if (sim_list_gpus(numbers, &there) != NVML_SUCCESS || there < gpu_count) {
        printf("The library that was found is not over the state in %s.\n", sim_directory());
        return EXIT_OTHER;
    }
    for (unsigned int g = 0; g < gpu_count; g++) {
        gpus[g].index = g;
        gpus[g].error = CALL(handle_function, "nvmlDeviceGetHandleByIndex_v2")(g, &gpus[g].device);
        /* From the state, since a GPU without a handle is named, too. */
        if (sim_text(numbers[g], "pci/bus_id", gpus[g].bus_id, sizeof gpus[g].bus_id) != NVML_SUCCESS)
            strcpy(gpus[g].bus_id, "00000000:00:00.0");
    }
    return 0;
}

static bool is_gpu(const struct gpu *gpu, const char *id) {
    char index[16];
    char text[96];
    snprintf(index, sizeof index, "%u", gpu->index);
    if (strcmp(id, index) == 0 || strcmp(id, gpu->bus_id) == 0 || strcmp(id, gpu->bus_id + 4) == 0)
        return true;
    return gpu->error == NVML_SUCCESS &&
           ((CALL(device_text, "nvmlDeviceGetUUID")(gpu->device, text, sizeof text) == NVML_SUCCESS && strcmp(id, text) == 0) ||
            (CALL(device_text, "nvmlDeviceGetSerial")(gpu->device, text, sizeof text) == NVML_SUCCESS && strcmp(id, text) == 0));
}

/* -i: index, serial number, UUID or bus id, several with commas. */
static int choose(const char *ids) {
    char list_of_ids[1024];
    char *save = NULL;
    for (unsigned int g = 0; ids == NULL && g < gpu_count; g++)
        gpus[g].chosen = true;
    if (ids == NULL)
        return 0;
    if ((size_t)snprintf(list_of_ids, sizeof list_of_ids, "%s", ids) >= sizeof list_of_ids)
        return refuse("-i: the list is too long.");
    for (char *id = strtok_r(list_of_ids, ",", &save); id != NULL; id = strtok_r(NULL, ",", &save)) {
        bool found = false;
        for (unsigned int g = 0; g < gpu_count && !found; g++)
            if (is_gpu(&gpus[g], id))
                found = gpus[g].chosen = true;
        if (!found) {
            puts("No devices were found");
            return EXIT_NOT_FOUND;
        }
    }
    return 0;
}

int main(int count, char **words) {
    struct options options = {.header = true, .units = true};
    int code = parse(count, words, &options);
    if (code == 0)
        code = start();
    if (code == 0)
        code = choose(options.ids);
    if (code != 0)
        return code;
    if (options.in_nvlink)
        code = nvlink(options.what);
    else if (options.what == 'L')
        code = list();
    else if (options.what == 'q')
        code = query(options.fields, options.header, options.units);
    else if (options.what == 'r')
        code = reset();
    else
        code = change(options.what, options.value);
    if (fflush(stdout) != 0 && code == 0)
        code = EXIT_OTHER;
    return code;
}
