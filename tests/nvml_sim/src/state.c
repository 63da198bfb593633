/* Copyright (c) 2026, The baremetal.inference contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "state.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef NVML_SIM_DEFAULT_STATE
#define NVML_SIM_DEFAULT_STATE "/var/lib/nvml-sim"
#endif

#define PATH_SIZE 2048
#define FILE_SIZE 65536

static char directory[1024] = NVML_SIM_DEFAULT_STATE;

static const struct {
    const char *name;
    nvmlReturn_t code;
} error_names[] = {
    {"UNINITIALIZED", NVML_ERROR_UNINITIALIZED},
    {"INVALID_ARGUMENT", NVML_ERROR_INVALID_ARGUMENT},
    {"NOT_SUPPORTED", NVML_ERROR_NOT_SUPPORTED},
    {"NO_PERMISSION", NVML_ERROR_NO_PERMISSION},
    {"ALREADY_INITIALIZED", NVML_ERROR_ALREADY_INITIALIZED},
    {"NOT_FOUND", NVML_ERROR_NOT_FOUND},
    {"INSUFFICIENT_SIZE", NVML_ERROR_INSUFFICIENT_SIZE},
    {"INSUFFICIENT_POWER", NVML_ERROR_INSUFFICIENT_POWER},
    {"DRIVER_NOT_LOADED", NVML_ERROR_DRIVER_NOT_LOADED},
    {"TIMEOUT", NVML_ERROR_TIMEOUT},
    {"IRQ_ISSUE", NVML_ERROR_IRQ_ISSUE},
    {"LIBRARY_NOT_FOUND", NVML_ERROR_LIBRARY_NOT_FOUND},
    {"FUNCTION_NOT_FOUND", NVML_ERROR_FUNCTION_NOT_FOUND},
    {"CORRUPTED_INFOROM", NVML_ERROR_CORRUPTED_INFOROM},
    {"GPU_IS_LOST", NVML_ERROR_GPU_IS_LOST},
    {"RESET_REQUIRED", NVML_ERROR_RESET_REQUIRED},
    {"OPERATING_SYSTEM", NVML_ERROR_OPERATING_SYSTEM},
    {"LIB_RM_VERSION_MISMATCH", NVML_ERROR_LIB_RM_VERSION_MISMATCH},
    {"IN_USE", NVML_ERROR_IN_USE},
    {"MEMORY", NVML_ERROR_MEMORY},
    {"NO_DATA", NVML_ERROR_NO_DATA},
    {"VGPU_ECC_NOT_SUPPORTED", NVML_ERROR_VGPU_ECC_NOT_SUPPORTED},
    {"INSUFFICIENT_RESOURCES", NVML_ERROR_INSUFFICIENT_RESOURCES},
    {"FREQ_NOT_SUPPORTED", NVML_ERROR_FREQ_NOT_SUPPORTED},
    {"ARGUMENT_VERSION_MISMATCH", NVML_ERROR_ARGUMENT_VERSION_MISMATCH},
    {"DEPRECATED", NVML_ERROR_DEPRECATED},
    {"NOT_READY", NVML_ERROR_NOT_READY},
    {"GPU_NOT_FOUND", NVML_ERROR_GPU_NOT_FOUND},
    {"INVALID_STATE", NVML_ERROR_INVALID_STATE},
    {"RESET_TYPE_NOT_SUPPORTED", NVML_ERROR_RESET_TYPE_NOT_SUPPORTED},
    {"UNKNOWN", NVML_ERROR_UNKNOWN},
};

void sim_debug(const char *format, ...) {
    if (getenv("NVML_SIM_DEBUG") == NULL)
        return;
    va_list arguments;
    va_start(arguments, format);
    fputs("nvml-sim: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

const char *sim_directory(void) {
    return directory;
}

void sim_choose_directory(void) {
    const char *wanted = getenv("NVML_SIM_STATE");
    if (wanted == NULL || *wanted == '\0')
        wanted = NVML_SIM_DEFAULT_STATE;
    /* One that does not fit is not there: init then says that no driver is loaded. */
    if (strlen(wanted) >= sizeof directory)
        wanted = "/nonexistent";
    strcpy(directory, wanted);
}

static int ascending(const void *left, const void *right) {
    return *(const int *)left - *(const int *)right;
}

nvmlReturn_t sim_list_gpus(int numbers[SIM_MAX_GPUS], unsigned int *count) {
    DIR *folder = opendir(directory);
    *count = 0;
    if (folder == NULL) {
        sim_debug("%s: %s", directory, strerror(errno));
        return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    }
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int number = 0;
        const char *digits = entry->d_name + 3;
        if (strncmp(entry->d_name, "gpu", 3) != 0 || *digits == '\0' || strlen(digits) > 4)
            continue;
        while (isdigit((unsigned char)*digits))
            number = number * 10 + (*digits++ - '0');
        if (*digits == '\0' && *count < SIM_MAX_GPUS)
            numbers[(*count)++] = number;
    }
    closedir(folder);
    qsort(numbers, *count, sizeof numbers[0], ascending);
    return NVML_SUCCESS;
}

/* The content of a file as a string. ENOENT and the like: NVML_ERROR_NOT_SUPPORTED. */
static nvmlReturn_t read_path(const char *path, char *out, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    size_t have = 0;
    if (file < 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            return NVML_ERROR_NOT_SUPPORTED;
        sim_debug("%s: %s", path, strerror(errno));
        return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_UNKNOWN;
    }
    for (;;) {
        ssize_t got = read(file, out + have, size - 1 - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            sim_debug("%s: %s", path, strerror(errno));
            close(file);
            return NVML_ERROR_UNKNOWN;
        }
        have += (size_t)got;
        if (got == 0 || have == size - 1)
            break;
    }
    close(file);
    out[have] = '\0';
    if (have == size - 1 || memchr(out, '\0', have) != NULL) {
        sim_debug("%s: too long, or not a text", path);
        return NVML_ERROR_UNKNOWN;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t read_layer(const char *layer, int gpu, const char *path, char *out, size_t size) {
    char full[PATH_SIZE];
    int length = gpu == SIM_SYSTEM ? snprintf(full, sizeof full, "%s%s/%s", directory, layer, path)
                                   : snprintf(full, sizeof full, "%s%s/gpu%d/%s", directory, layer, gpu, path);
    if (length < 0 || (size_t)length >= sizeof full)
        return NVML_ERROR_UNKNOWN;
    return read_path(full, out, size);
}

nvmlReturn_t sim_file(int gpu, const char *path, char *out, size_t size) {
    /* What a reboot loses lies in run/ and covers what lasts. */
    nvmlReturn_t result = read_layer("/run", gpu, path, out, size);
    return result == NVML_ERROR_NOT_SUPPORTED ? read_layer("", gpu, path, out, size) : result;
}

static char *trimmed(char *text) {
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        end--;
    *end = '\0';
    return text;
}

/* Value of "name = value" in a file's text, which is cut up; NULL when there is no such line. */
static char *named_value(char *text, const char *name) {
    for (char *line = text, *next; line != NULL; line = next) {
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        char *comment = strchr(line, '#');
        if (comment != NULL)
            *comment = '\0';
        char *equals = strchr(line, '=');
        if (equals == NULL)
            continue;
        *equals = '\0';
        if (strcmp(trimmed(line), name) == 0)
            return trimmed(equals + 1);
    }
    return NULL;
}

static nvmlReturn_t value_in_layer(const char *layer, int gpu, const char *key, char *out, size_t size) {
    char path[512];
    char text[FILE_SIZE];
    const char *name = strchr(key, '#');
    size_t length = name != NULL ? (size_t)(name - key) : strlen(key);
    if (length >= sizeof path)
        return NVML_ERROR_UNKNOWN;
    memcpy(path, key, length);
    path[length] = '\0';
    nvmlReturn_t result = read_layer(layer, gpu, path, text, sizeof text);
    if (result != NVML_SUCCESS)
        return result;
    const char *value = name != NULL ? named_value(text, name + 1) : trimmed(text);
    if (value == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    if (*value == '\0' || strlen(value) >= size) {
        sim_debug("%s: %s", key, *value == '\0' ? "is empty" : "is too long");
        return NVML_ERROR_UNKNOWN;
    }
    strcpy(out, value);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_parse_error(const char *what, const char *text) {
    if (*text != '!')
        return NVML_SUCCESS;
    text++;
    for (size_t n = 0; n < sizeof error_names / sizeof error_names[0]; n++)
        if (strcmp(text, error_names[n].name) == 0)
            return error_names[n].code;
    char *end = NULL;
    errno = 0;
    long code = strtol(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end != '\0' || errno != 0 || code < 1 || code > 999) {
        sim_debug("%s: '!%s' is no NVML error", what, text);
        return NVML_ERROR_UNKNOWN;
    }
    return (nvmlReturn_t)code;
}

nvmlReturn_t sim_raw(int gpu, const char *key, char *out, size_t size) {
    nvmlReturn_t result = value_in_layer("/run", gpu, key, out, size);
    return result == NVML_ERROR_NOT_SUPPORTED ? value_in_layer("", gpu, key, out, size) : result;
}

nvmlReturn_t sim_text(int gpu, const char *key, char *out, size_t size) {
    char value[SIM_TEXT];
    nvmlReturn_t result = sim_raw(gpu, key, value, sizeof value);
    if (result == NVML_SUCCESS)
        result = sim_parse_error(key, value);
    if (result != NVML_SUCCESS)
        return result;
    if (strlen(value) >= size) {
        sim_debug("%s: '%.40s...' is too long", key, value);
        return NVML_ERROR_UNKNOWN;
    }
    strcpy(out, value);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_parse_u64(const char *what, const char *text, uint64_t *out) {
    char *end = NULL;
    int base = text[0] == '0' && (text[1] == 'x' || text[1] == 'X') ? 16 : 10;
    errno = 0;
    unsigned long long value = strtoull(text, &end, base);
    if (!isdigit((unsigned char)*text) || *end != '\0' || errno != 0) {
        sim_debug("%s: '%.40s' is no number", what, text);
        return NVML_ERROR_UNKNOWN;
    }
    *out = value;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_parse_i64(const char *what, const char *text, int64_t *out) {
    uint64_t value = 0;
    bool negative = *text == '-';
    nvmlReturn_t result = sim_parse_u64(what, text + negative, &value);
    if (result != NVML_SUCCESS)
        return result;
    if (value > (uint64_t)INT64_MAX) {
        sim_debug("%s: '%.40s' is out of range", what, text);
        return NVML_ERROR_UNKNOWN;
    }
    *out = negative ? -(int64_t)value : (int64_t)value;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_u64(int gpu, const char *key, uint64_t *out) {
    char text[SIM_TEXT];
    nvmlReturn_t result = sim_text(gpu, key, text, sizeof text);
    return result != NVML_SUCCESS ? result : sim_parse_u64(key, text, out);
}

nvmlReturn_t sim_i64(int gpu, const char *key, int64_t *out) {
    char text[SIM_TEXT];
    nvmlReturn_t result = sim_text(gpu, key, text, sizeof text);
    return result != NVML_SUCCESS ? result : sim_parse_i64(key, text, out);
}

nvmlReturn_t sim_u32(int gpu, const char *key, unsigned int *out) {
    uint64_t value = 0;
    nvmlReturn_t result = sim_u64(gpu, key, &value);
    if (result == NVML_SUCCESS && value > UINT32_MAX) {
        sim_debug("%s: %llu is out of range", key, (unsigned long long)value);
        return NVML_ERROR_UNKNOWN;
    }
    if (result == NVML_SUCCESS)
        *out = (unsigned int)value;
    return result;
}

nvmlReturn_t sim_i32(int gpu, const char *key, int *out) {
    int64_t value = 0;
    nvmlReturn_t result = sim_i64(gpu, key, &value);
    if (result == NVML_SUCCESS && (value > INT32_MAX || value < INT32_MIN)) {
        sim_debug("%s: %lld is out of range", key, (long long)value);
        return NVML_ERROR_UNKNOWN;
    }
    if (result == NVML_SUCCESS)
        *out = (int)value;
    return result;
}
