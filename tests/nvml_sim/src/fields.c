/* Copyright (c) 2026, The baremetal.inference contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * nvmlDeviceGetFieldValues. Each field is asked for, in this order:
 *   1. in the GPU's file "fields": "<id> = <type> <value>", "<id> = <type> !<error>" or "<id> = !<error>";
 *   2. in the table below, which takes it from the same state as the functions do, so that the two never differ;
 *   3. else it answers as a real H200 with driver 580.159 does for fields that it does not have
 *      (recordings/): NOT_SUPPORTED of type double, or INVALID_ARGUMENT for numbers that the driver does not know.
 */
#include "fields.h"

#include <stdio.h>
#include <string.h>

#include "state.h"

#define U32 NVML_VALUE_TYPE_UNSIGNED_INT
#define U64 NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
#define S32 NVML_VALUE_TYPE_SIGNED_INT

enum kind {
    KEY,           /* value of a key */
    LINK_OF_SCOPE, /* value of the link that scopeId names */
    LINK_FIXED,    /* value of link number `link` */
    LINK_SUM,      /* sum over all links */
    LINK_COMMON,   /* value that all active links have */
    SPECIAL
};

struct entry {
    unsigned int id;
    unsigned int type;
    enum kind kind;
    const char *key;
    unsigned int link;
};

/* clang-format off */
#define PER_LINK(first, second, key) \
    {(first), U64, LINK_FIXED, (key), 0}, {(first) + 1, U64, LINK_FIXED, (key), 1}, \
    {(first) + 2, U64, LINK_FIXED, (key), 2}, {(first) + 3, U64, LINK_FIXED, (key), 3}, \
    {(first) + 4, U64, LINK_FIXED, (key), 4}, {(first) + 5, U64, LINK_FIXED, (key), 5}, \
    {(second), U64, LINK_FIXED, (key), 6}, {(second) + 1, U64, LINK_FIXED, (key), 7}, \
    {(second) + 2, U64, LINK_FIXED, (key), 8}, {(second) + 3, U64, LINK_FIXED, (key), 9}, \
    {(second) + 4, U64, LINK_FIXED, (key), 10}, {(second) + 5, U64, LINK_FIXED, (key), 11}

static const struct entry entries[] = {
    {1, U64, SPECIAL, "ecc/current", 0},
    {2, U64, KEY, "ecc/pending", 0},
    {3, U64, SPECIAL, "ecc/volatile/corrected", 0},
    {4, U64, SPECIAL, "ecc/volatile/uncorrected", 0},
    {5, U64, SPECIAL, "ecc/aggregate/corrected", 0},
    {6, U64, SPECIAL, "ecc/aggregate/uncorrected", 0},
    {7, U64, KEY, "ecc/volatile/corrected/l1", 0},
    {8, U64, KEY, "ecc/volatile/uncorrected/l1", 0},
    {9, U64, KEY, "ecc/volatile/corrected/l2", 0},
    {10, U64, KEY, "ecc/volatile/uncorrected/l2", 0},
    {11, U64, KEY, "ecc/volatile/corrected/device", 0},
    {12, U64, KEY, "ecc/volatile/uncorrected/device", 0},
    {13, U64, KEY, "ecc/volatile/corrected/register_file", 0},
    {14, U64, KEY, "ecc/volatile/uncorrected/register_file", 0},
    {15, U64, KEY, "ecc/volatile/corrected/texture", 0},
    {16, U64, KEY, "ecc/volatile/uncorrected/texture", 0},
    {17, U64, KEY, "ecc/volatile/uncorrected/cbu", 0},
    {18, U64, KEY, "ecc/aggregate/corrected/l1", 0},
    {19, U64, KEY, "ecc/aggregate/uncorrected/l1", 0},
    {20, U64, KEY, "ecc/aggregate/corrected/l2", 0},
    {21, U64, KEY, "ecc/aggregate/uncorrected/l2", 0},
    {22, U64, KEY, "ecc/aggregate/corrected/device", 0},
    {23, U64, KEY, "ecc/aggregate/uncorrected/device", 0},
    {24, U64, KEY, "ecc/aggregate/corrected/register_file", 0},
    {25, U64, KEY, "ecc/aggregate/uncorrected/register_file", 0},
    {26, U64, KEY, "ecc/aggregate/corrected/texture", 0},
    {27, U64, KEY, "ecc/aggregate/uncorrected/texture", 0},
    {28, U64, KEY, "ecc/aggregate/uncorrected/cbu", 0},
    {29, U64, KEY, "retired_pages/single_bit_count", 0},
    {30, U64, KEY, "retired_pages/double_bit_count", 0},
    {31, U64, KEY, "retired_pages/pending", 0},
    PER_LINK(32, 96, "error_crc_flit"), {38, U64, LINK_SUM, "error_crc_flit", 0},
    PER_LINK(39, 102, "error_crc_data"), {45, U64, LINK_SUM, "error_crc_data", 0},
    PER_LINK(46, 108, "error_replay"), {52, U64, LINK_SUM, "error_replay", 0},
    PER_LINK(53, 114, "error_recovery"), {59, U64, LINK_SUM, "error_recovery", 0},
    {82, U32, KEY, "temperature/memory", 0},
    {83, U64, KEY, "power/energy", 0},
    PER_LINK(84, 132, "speed_mbps"), {90, U64, LINK_COMMON, "speed_mbps", 0},
    {91, U32, SPECIAL, "nvlink", 0},
    {92, U64, KEY, "retired_pages/pending_single_bit", 0},
    {93, U64, KEY, "retired_pages/pending_double_bit", 0},
    {94, U32, KEY, "pci/replay_counter", 0},
    {95, U32, KEY, "pci/replay_rollover_counter", 0},
    {142, U64, KEY, "remapped_rows/correctable", 0},
    {143, U64, KEY, "remapped_rows/uncorrectable", 0},
    {144, U64, KEY, "remapped_rows/pending", 0},
    {145, U64, KEY, "remapped_rows/failure", 0},
    {146, U32, LINK_OF_SCOPE, "remote_link", 0},
    {147, U32, SPECIAL, "nvlink", 0},
    {148, U64, LINK_FIXED, "error_ecc_data", 0}, {149, U64, LINK_FIXED, "error_ecc_data", 1},
    {150, U64, LINK_FIXED, "error_ecc_data", 2}, {151, U64, LINK_FIXED, "error_ecc_data", 3},
    {152, U64, LINK_FIXED, "error_ecc_data", 4}, {153, U64, LINK_FIXED, "error_ecc_data", 5},
    {154, U64, LINK_FIXED, "error_ecc_data", 6}, {155, U64, LINK_FIXED, "error_ecc_data", 7},
    {156, U64, LINK_FIXED, "error_ecc_data", 8}, {157, U64, LINK_FIXED, "error_ecc_data", 9},
    {158, U64, LINK_FIXED, "error_ecc_data", 10}, {159, U64, LINK_FIXED, "error_ecc_data", 11},
    {160, U64, LINK_SUM, "error_ecc_data", 0},
    {161, U64, LINK_OF_SCOPE, "error_replay", 0},
    {162, U64, LINK_OF_SCOPE, "error_recovery", 0},
    {163, U64, LINK_OF_SCOPE, "error_crc_flit", 0},
    {164, U32, LINK_OF_SCOPE, "speed_mbps", 0},
    {165, U32, LINK_OF_SCOPE, "state", 0},
    {166, U32, LINK_OF_SCOPE, "version", 0},
    {167, U32, LINK_OF_SCOPE, "power_state", 0},
    {170, U32, KEY, "c2c/link_count", 0},
    {171, U32, KEY, "c2c/status", 0},
    {172, U32, KEY, "c2c/max_bandwidth", 0},
    {185, U32, KEY, "power/average", 0},
    {186, U32, KEY, "power/instant", 0},
    {187, U32, KEY, "power/min_limit", 0},
    {188, U32, KEY, "power/max_limit", 0},
    {189, U32, KEY, "power/default_limit", 0},
    {190, U32, SPECIAL, "power/enforced_limit", 0},
    {191, U64, KEY, "power/energy", 0},
    {192, U32, KEY, "power/limit", 0},
    {193, S32, KEY, "temperature/tlimit/shutdown", 0},
    {194, S32, KEY, "temperature/tlimit/slowdown", 0},
    {195, S32, KEY, "temperature/tlimit/memory_max", 0},
    {196, S32, KEY, "temperature/tlimit/gpu_max", 0},
    {226, U32, KEY, "reset_status", 0},
    {227, U32, KEY, "drain_and_reset_status", 0},
    {230, U32, KEY, "recovery_action", 0},
    {231, U32, KEY, "c2c/error_intr", 0},
    {232, U32, KEY, "c2c/error_replay", 0},
    {233, U32, KEY, "c2c/error_replay_back_to_back", 0},
    {234, U32, KEY, "c2c/power_state", 0},
    /* Types as recorded; no card at hand had a value in them. */
    {252, U32, KEY, "field_252", 0}, {253, U32, KEY, "field_253", 0}, {268, U32, KEY, "field_268", 0},
    {272, U64, KEY, "power/sync_balancing_frequency", 0},
    {273, U64, KEY, "power/sync_balancing_af", 0},
    {301, U64, KEY, "remapped_rows/correctable_inactive", 0},
    {302, U64, KEY, "remapped_rows/uncorrectable_inactive", 0},
};
/* clang-format on */

static const struct {
    const char *name;
    unsigned int type;
} type_names[] = {
    {"double", NVML_VALUE_TYPE_DOUBLE},
    {"u32", NVML_VALUE_TYPE_UNSIGNED_INT},
    {"ulong", NVML_VALUE_TYPE_UNSIGNED_LONG},
    {"u64", NVML_VALUE_TYPE_UNSIGNED_LONG_LONG},
    {"s64", NVML_VALUE_TYPE_SIGNED_LONG_LONG},
    {"s32", NVML_VALUE_TYPE_SIGNED_INT},
    {"u16", NVML_VALUE_TYPE_UNSIGNED_SHORT},
};

/* The mode that the InfoROM keeps is the one that a boot makes current; run/ only holds a difference to it. These are
 * two files, so that reading takes the writers' lock. */
static nvmlReturn_t current_and_pending(int gpu, const char *current_key, const char *pending_key, unsigned int *current,
                                        unsigned int *pending) {
    nvmlReturn_t result = sim_lock();
    if (result != NVML_SUCCESS)
        return result;
    result = sim_u32(gpu, current_key, current);
    nvmlReturn_t other = sim_u32(gpu, pending_key, pending);
    sim_unlock();
    if (result == NVML_ERROR_NOT_SUPPORTED) {
        result = other;
        *current = *pending;
    }
    return result != NVML_SUCCESS ? result : other;
}

nvmlReturn_t sim_ecc(int gpu, unsigned int *current, unsigned int *pending) {
    return current_and_pending(gpu, "ecc/current", "ecc/pending", current, pending);
}

nvmlReturn_t sim_mig(int gpu, unsigned int *current, unsigned int *pending) {
    return current_and_pending(gpu, "mig/current", "mig/pending", current, pending);
}

nvmlReturn_t sim_ecc_counts(int gpu) {
    unsigned int current = 0, pending = 0;
    nvmlReturn_t result = sim_ecc(gpu, &current, &pending);
    return result == NVML_SUCCESS && current == 0 ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t sim_ecc_total(int gpu, const char *folder, uint64_t *count) {
    char key[128];
    uint64_t dram = 0, sram = 0;
    nvmlReturn_t result = sim_ecc_counts(gpu);
    if (result != NVML_SUCCESS)
        return result;
    snprintf(key, sizeof key, "%s/dram", folder);
    result = sim_u64(gpu, key, &dram);
    if (result != NVML_SUCCESS)
        return result;
    snprintf(key, sizeof key, "%s/sram", folder);
    result = sim_u64(gpu, key, &sram);
    if (result == NVML_SUCCESS)
        *count = dram + sram;
    return result;
}

nvmlReturn_t sim_enforced_limit(int gpu, unsigned int *milliwatts) {
    /* Lower than the limit where something else says so: a cap of the BMC, or any other reason as a figure of its own. */
    unsigned int cap = 0;
    nvmlReturn_t result = sim_u32(gpu, "power/enforced_limit", milliwatts);
    if (result != NVML_ERROR_NOT_SUPPORTED)
        return result;
    result = sim_u32(gpu, "power/limit", milliwatts);
    if (result != NVML_SUCCESS)
        return result;
    result = sim_u32(gpu, "power/enforced_cap", &cap);
    if (result == NVML_SUCCESS && cap < *milliwatts)
        *milliwatts = cap;
    return result == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : result;
}

static nvmlReturn_t link_u64(int gpu, unsigned int link, const char *name, uint64_t *out) {
    char key[128];
    snprintf(key, sizeof key, "nvlink/%u#%s", link, name);
    return sim_u64(gpu, key, out);
}

unsigned int sim_link_count(int gpu) {
    char path[64];
    char text[SIM_TEXT];
    unsigned int count = 0;
    for (; count < 36; count++) {
        snprintf(path, sizeof path, "nvlink/%u", count);
        if (sim_file(gpu, path, text, sizeof text) == NVML_ERROR_NOT_SUPPORTED)
            break;
    }
    return count;
}

static nvmlReturn_t links_together(int gpu, const struct entry *entry, uint64_t *out) {
    unsigned int count = sim_link_count(gpu);
    bool found = false;
    *out = 0;
    for (unsigned int link = 0; link < count; link++) {
        uint64_t value = 0, state = 0;
        if (entry->kind == LINK_COMMON) {
            nvmlReturn_t result = link_u64(gpu, link, "state", &state);
            if (result != NVML_SUCCESS)
                return result;
            if (state == 0)
                continue;
        }
        nvmlReturn_t result = link_u64(gpu, link, entry->key, &value);
        if (result != NVML_SUCCESS)
            return result;
        if (entry->kind == LINK_COMMON && found && value != *out)
            return NVML_ERROR_NOT_SUPPORTED;
        *out = entry->kind == LINK_SUM ? *out + value : value;
        found = true;
    }
    return found ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t special(int gpu, const struct entry *entry, uint64_t *out) {
    unsigned int number = 0, pending = 0;
    nvmlReturn_t result = NVML_ERROR_NOT_SUPPORTED;
    switch (entry->id) {
    case 1:
        result = sim_ecc(gpu, &number, &pending);
        break;
    case 3:
    case 4:
    case 5:
    case 6:
        return sim_ecc_total(gpu, entry->key, out);
    case 91:
        number = sim_link_count(gpu);
        result = number > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        break;
    case 147:
        for (unsigned int link = 0, count = sim_link_count(gpu); link < count; link++) {
            uint64_t kind = 0;
            result = link_u64(gpu, link, "remote_type", &kind);
            if (result != NVML_SUCCESS)
                return result;
            number += kind == 2;
        }
        break;
    case 190:
        result = sim_enforced_limit(gpu, &number);
        break;
    default:
        break;
    }
    *out = number;
    return result;
}

static void store(nvmlFieldValue_t *field, uint64_t value) {
    memset(&field->value, 0, sizeof field->value);
    switch (field->valueType) {
    case NVML_VALUE_TYPE_DOUBLE:
        field->value.dVal = (double)value;
        break;
    case NVML_VALUE_TYPE_UNSIGNED_INT:
    case NVML_VALUE_TYPE_SIGNED_INT:
        field->value.uiVal = (unsigned int)value;
        break;
    case NVML_VALUE_TYPE_UNSIGNED_SHORT:
        field->value.usVal = (unsigned short)value;
        break;
    default:
        field->value.ullVal = value;
        break;
    }
}

/* A line of the file "fields". */
static void from_line(const char *key, char *line, nvmlFieldValue_t *field) {
    int64_t number = 0;
    uint64_t value = 0;
    char *rest = line;
    field->valueType = NVML_VALUE_TYPE_DOUBLE;
    if (*line != '!') {
        size_t length = strcspn(line, " \t");
        bool known = false;
        for (size_t n = 0; n < sizeof type_names / sizeof type_names[0]; n++)
            if (strlen(type_names[n].name) == length && strncmp(line, type_names[n].name, length) == 0) {
                field->valueType = type_names[n].type;
                known = true;
            }
        rest = line + length + strspn(line + length, " \t");
        if (!known || *rest == '\0') {
            sim_debug("%s: '%.40s' is not '<type> <value>'", key, line);
            field->nvmlReturn = NVML_ERROR_UNKNOWN;
            return;
        }
    }
    field->nvmlReturn = sim_parse_error(key, rest);
    if (field->nvmlReturn != NVML_SUCCESS)
        return;
    if (*rest == '-') {
        field->nvmlReturn = sim_parse_i64(key, rest, &number);
        value = (uint64_t)number;
    } else {
        field->nvmlReturn = sim_parse_u64(key, rest, &value);
    }
    if (field->nvmlReturn == NVML_SUCCESS)
        store(field, value);
}

static bool unknown_to_driver(unsigned int id) {
    return id == 0 || id == 274 || (id >= 289 && id <= 293) || (id >= 296 && id <= 300) || id >= 303;
}

void sim_field(int gpu, nvmlFieldValue_t *field) {
    char key[64];
    char text[SIM_TEXT];
    uint64_t value = 0;
    int64_t number = 0;
    memset(&field->value, 0, sizeof field->value);

    snprintf(key, sizeof key, "fields#%u", field->fieldId);
    nvmlReturn_t result = sim_raw(gpu, key, text, sizeof text);
    if (result == NVML_SUCCESS) {
        from_line(key, text, field);
        return;
    }
    field->valueType = NVML_VALUE_TYPE_DOUBLE;
    field->nvmlReturn = result;
    if (result != NVML_ERROR_NOT_SUPPORTED)
        return;
    if (unknown_to_driver(field->fieldId)) {
        field->nvmlReturn = NVML_ERROR_INVALID_ARGUMENT;
        return;
    }
    for (size_t n = 0; n < sizeof entries / sizeof entries[0]; n++) {
        const struct entry *entry = &entries[n];
        if (entry->id != field->fieldId)
            continue;
        field->valueType = entry->type;
        switch (entry->kind) {
        case KEY:
            if (strncmp(entry->key, "ecc/volatile", 12) == 0 || strncmp(entry->key, "ecc/aggregate", 13) == 0)
                result = sim_ecc_counts(gpu);
            else
                result = NVML_SUCCESS;
            if (result != NVML_SUCCESS)
                break;
            if (entry->type == S32) {
                result = sim_i64(gpu, entry->key, &number);
                value = (uint64_t)number;
            } else {
                result = sim_u64(gpu, entry->key, &value);
            }
            break;
        case LINK_OF_SCOPE:
            result = link_u64(gpu, field->scopeId, entry->key, &value);
            break;
        case LINK_FIXED:
            result = link_u64(gpu, entry->link, entry->key, &value);
            break;
        case LINK_SUM:
        case LINK_COMMON:
            result = links_together(gpu, entry, &value);
            break;
        case SPECIAL:
            result = special(gpu, entry, &value);
            break;
        }
        field->nvmlReturn = result;
        if (result == NVML_SUCCESS)
            store(field, value);
        return;
    }
}
