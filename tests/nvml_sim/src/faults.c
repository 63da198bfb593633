/* Copyright (c) 2026, The baremetal.inference contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "faults.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

enum when { ALWAYS, ON, FROM, UNTIL };

struct fault {
    enum when when;
    uint64_t number;
    nvmlReturn_t error;
};

/* "nvmlDeviceGetCount" means all its versions; pynvml's nvmlInit calls nvmlInitWithFlags. */
static bool same_function(const char *pattern, const char *function) {
    size_t length = strlen(pattern);
    if (strcmp(pattern, "*") == 0 || strcmp(pattern, function) == 0)
        return true;
    if (strcmp(pattern, "nvmlInit") == 0 && strcmp(function, "nvmlInitWithFlags") == 0)
        return true;
    return strncmp(pattern, function, length) == 0 && strncmp(function + length, "_v", 2) == 0 &&
           isdigit((unsigned char)function[length + 2]) && function[length + 3] == '\0';
}

/* Of NVML alone: CUDA's callers would not know SIM_FAULT_SUCCESS. */
static bool is_change(const char *function) {
    return strncmp(function, "cu", 2) != 0 && strstr(function, "Get") == NULL &&
           (strstr(function, "Set") != NULL || strstr(function, "Clear") != NULL || strstr(function, "Reset") != NULL);
}

/* "<word> <number>" or "once" or nothing. */
static bool parse_when(const char *word, const char *number, struct fault *fault) {
    static const struct {
        const char *word;
        enum when when;
    } words[] = {{"on", ON}, {"from", FROM}, {"until", UNTIL}};
    fault->when = ALWAYS;
    if (word == NULL)
        return true;
    if (strcmp(word, "once") == 0) {
        fault->when = ON;
        fault->number = 1;
        return number == NULL;
    }
    for (size_t n = 0; n < sizeof words / sizeof words[0]; n++)
        if (strcmp(word, words[n].word) == 0) {
            fault->when = words[n].when;
            return number != NULL && sim_parse_u64("faults", number, &fault->number) == NVML_SUCCESS &&
                   fault->number > 0;
        }
    return false;
}

/* How often this has been asked before, over all processes, until the next boot; counts one more. */
static nvmlReturn_t count_call(const char *what, uint64_t *calls) {
    char key[320];
    char name[256];
    char text[32];
    size_t length = 0;
    uint64_t before = 0;
    for (const char *at = what; *at != '\0' && length < sizeof name - 1; at++)
        name[length++] = *at == '=' || *at == '#' || isspace((unsigned char)*at) ? '_' : *at;
    name[length] = '\0';
    snprintf(key, sizeof key, "fault_counts#%s", name);
    nvmlReturn_t result = sim_lock();
    if (result != NVML_SUCCESS)
        return result;
    result = sim_u64(SIM_SYSTEM, key, &before);
    if (result == NVML_SUCCESS || result == NVML_ERROR_NOT_SUPPORTED) {
        *calls = before + 1;
        snprintf(text, sizeof text, "%llu", (unsigned long long)*calls);
        result = sim_write_volatile(SIM_SYSTEM, key, text);
    }
    sim_unlock();
    return result;
}

static nvmlReturn_t apply(const struct fault *fault, const char *what) {
    uint64_t calls = 0;
    if (fault->when == ALWAYS)
        return fault->error;
    nvmlReturn_t result = count_call(what, &calls);
    if (result != NVML_SUCCESS) {
        sim_debug("%s: its calls cannot be counted", what);
        return NVML_ERROR_UNKNOWN;
    }
    bool now = fault->when == ON ? calls == fault->number
                                 : fault->when == FROM ? calls >= fault->number : calls <= fault->number;
    return now ? fault->error : NVML_SUCCESS;
}

/* "1", or "from <n>": lost from the n-th call on that asks for this GPU. */
static nvmlReturn_t lost(int gpu, bool count) {
    struct fault fault = {.error = NVML_ERROR_GPU_IS_LOST};
    char text[SIM_TEXT];
    char what[32];
    nvmlReturn_t result = sim_text(gpu, "lost", text, sizeof text);
    if (result == NVML_ERROR_NOT_SUPPORTED)
        return NVML_SUCCESS;
    if (result != NVML_SUCCESS)
        return result;
    if (strcmp(text, "1") == 0)
        return NVML_ERROR_GPU_IS_LOST;
    if (strncmp(text, "from ", 5) != 0 || !parse_when("from", text + 5, &fault)) {
        sim_debug("gpu%d/lost: '%s' is neither 1 nor from <n>", gpu, text);
        return NVML_ERROR_UNKNOWN;
    }
    if (!count)
        return NVML_SUCCESS;
    snprintf(what, sizeof what, "gpu%d/lost", gpu);
    return apply(&fault, what);
}

nvmlReturn_t sim_lost(int gpu) {
    return lost(gpu, false);
}

/* "<function or *> [gpu<n>] = <error or SUCCESS> [once | on <n> | from <n> | until <n>]". */
static nvmlReturn_t apply_line(char *line, const char *function, int gpu) {
    struct fault fault = {0};
    char what[256];
    char error[64];
    char *words = NULL;
    char *equals = strchr(line, '=');
    snprintf(what, sizeof what, "%s", line);
    if (equals == NULL)
        goto malformed;
    *equals = '\0';
    char *name = strtok_r(line, " \t", &words);
    char *which = strtok_r(NULL, " \t", &words);
    if (name == NULL || (which != NULL && strtok_r(NULL, " \t", &words) != NULL))
        goto malformed;
    char *error_text = strtok_r(equals + 1, " \t", &words);
    char *when = strtok_r(NULL, " \t", &words);
    char *number = strtok_r(NULL, " \t", &words);
    if (error_text == NULL || strlen(error_text) + 2 > sizeof error || strtok_r(NULL, " \t", &words) != NULL ||
        !parse_when(when, number, &fault))
        goto malformed;
    snprintf(error, sizeof error, "!%s", error_text);
    fault.error = strcmp(error_text, "SUCCESS") == 0 ? SIM_FAULT_SUCCESS : sim_parse_error("faults", error);
    if (fault.error == NVML_ERROR_UNKNOWN && strcmp(error_text, "UNKNOWN") != 0 && strcmp(error_text, "999") != 0)
        goto malformed;
    if (which != NULL) {
        uint64_t wanted = 0;
        if (strncmp(which, "gpu", 3) != 0 || sim_parse_u64("faults", which + 3, &wanted) != NVML_SUCCESS)
            goto malformed;
        if (gpu < 0 || wanted != (uint64_t)gpu)
            return NVML_SUCCESS;
    }
    if (!same_function(name, function) || (fault.error == SIM_FAULT_SUCCESS && !is_change(function)))
        return NVML_SUCCESS;
    return apply(&fault, what);

malformed:
    sim_debug("faults: '%s' is not '<function> [gpu<n>] = <error> [once | on <n> | from <n> | until <n>]'", what);
    return NVML_ERROR_UNKNOWN;
}

nvmlReturn_t sim_fault(const char *function, int gpu) {
    char text[SIM_TEXT * 4];
    nvmlReturn_t answer = gpu == SIM_SYSTEM ? NVML_SUCCESS : lost(gpu, true);
    nvmlReturn_t result = sim_file(SIM_SYSTEM, "faults", text, sizeof text);
    if (result == NVML_ERROR_NOT_SUPPORTED)
        return answer;
    if (result != NVML_SUCCESS)
        return result;
    char *save = NULL;
    /* Every line counts its calls; the first one whose turn it is answers. */
    for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        line[strcspn(line, "#")] = '\0';
        line += strspn(line, " \t\r");
        size_t length = strlen(line);
        while (length > 0 && isspace((unsigned char)line[length - 1]))
            line[--length] = '\0';
        if (length == 0)
            continue;
        result = apply_line(line, function, gpu);
        if (answer == NVML_SUCCESS)
            answer = result;
    }
    return answer;
}
