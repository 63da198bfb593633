/* Copyright (c) 2026, The baremetal.inference contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "state.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef NVML_SIM_DEFAULT_STATE
#define NVML_SIM_DEFAULT_STATE "/var/lib/nvml-sim"
#endif

#define PATH_SIZE 2048
#define FILE_SIZE 65536

static char directory[1024] = NVML_SIM_DEFAULT_STATE;

/* What a boot sets anew, with all that lies in a folder of that name. The same list as in nvml_sim.py. */
static const char *const lost_at_reboot[] = {
    "drain_and_reset_status",
    "ecc/current",
    "ecc/volatile",
    "lost",
    "mig/current",
    "nvlink",
    "persistence_mode",
    "power/enforced_limit",
    "power/limit",
    "processes",
    "recovery_action",
    "remapped_rows/pending",
    "reset_status",
};

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

/* Full path of a key's file; false when it is too long. */
static bool full_path(const char *layer, int gpu, const char *path, char out[PATH_SIZE]) {
    int length = gpu == SIM_SYSTEM ? snprintf(out, PATH_SIZE, "%s%s/%s", directory, layer, path)
                                   : snprintf(out, PATH_SIZE, "%s%s/gpu%d/%s", directory, layer, gpu, path);
    return length > 0 && length < PATH_SIZE;
}

static nvmlReturn_t read_layer(const char *layer, int gpu, const char *path, char *out, size_t size) {
    char full[PATH_SIZE];
    return full_path(layer, gpu, path, full) ? read_path(full, out, size) : NVML_ERROR_UNKNOWN;
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

/* "folder/file#name": the file, and the name or NULL. */
static bool split_key(const char *key, char path[512], const char **name) {
    const char *hash = strchr(key, '#');
    size_t length = hash != NULL ? (size_t)(hash - key) : strlen(key);
    if (length == 0 || length >= 512)
        return false;
    memcpy(path, key, length);
    path[length] = '\0';
    *name = hash != NULL ? hash + 1 : NULL;
    return true;
}

static nvmlReturn_t value_in_layer(const char *layer, int gpu, const char *key, char *out, size_t size) {
    char path[512];
    char text[FILE_SIZE];
    const char *name = NULL;
    if (!split_key(key, path, &name))
        return NVML_ERROR_UNKNOWN;
    nvmlReturn_t result = read_layer(layer, gpu, path, text, sizeof text);
    if (result != NVML_SUCCESS)
        return result;
    const char *value = name != NULL ? named_value(text, name) : trimmed(text);
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

/* ---- writing ---- */

/* Each thread opens the lock file for itself, so that flock() keeps threads apart as it does processes. */
static _Thread_local __attribute__((tls_model("initial-exec"))) int lock_depth;
static _Thread_local __attribute__((tls_model("initial-exec"))) int lock_file = -1;

static nvmlReturn_t from_errno(const char *what) {
    int number = errno;
    sim_debug("%s: %s", what, strerror(number));
    return number == EACCES || number == EPERM || number == EROFS ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t sim_lock(void) {
    char path[PATH_SIZE];
    if (lock_depth > 0) {
        lock_depth++;
        return NVML_SUCCESS;
    }
    if (!full_path("", SIM_SYSTEM, "lock", path))
        return NVML_ERROR_UNKNOWN;
    /* Reading is enough for flock(), so that those can lock who may only read. */
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 && errno == ENOENT)
        file = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0)
        return from_errno(path);
    while (flock(file, LOCK_EX) != 0)
        if (errno != EINTR) {
            nvmlReturn_t result = from_errno(path);
            close(file);
            return result;
        }
    lock_file = file;
    lock_depth = 1;
    return NVML_SUCCESS;
}

void sim_unlock(void) {
    if (lock_depth == 0 || --lock_depth > 0)
        return;
    close(lock_file);
    lock_file = -1;
}

/* The folders above a file, and with `last` the path itself. */
static nvmlReturn_t make_folders(const char *path, bool last) {
    char folder[PATH_SIZE];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof folder)
        return NVML_ERROR_UNKNOWN;
    memcpy(folder, path, length + 1);
    for (size_t n = 1; n <= length; n++) {
        if (folder[n] != '/' && !(last && n == length))
            continue;
        char kept = folder[n];
        folder[n] = '\0';
        if (mkdir(folder, 0755) != 0 && errno != EEXIST)
            return from_errno(folder);
        folder[n] = kept;
    }
    return NVML_SUCCESS;
}

/* run/ may be a link to a folder that a boot has taken away. */
static nvmlReturn_t make_run(void) {
    char link[PATH_SIZE];
    char target[PATH_SIZE];
    if (!full_path("/run", SIM_SYSTEM, "", link))
        return NVML_ERROR_UNKNOWN;
    link[strlen(link) - 1] = '\0';
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length < 0)
        return errno == EINVAL || errno == ENOENT ? make_folders(link, true) : from_errno(link);
    target[length] = '\0';
    if (target[0] != '/') {
        sim_debug("%s: is a link to '%s', which is no absolute path", link, target);
        return NVML_ERROR_UNKNOWN;
    }
    return make_folders(target, true);
}

static nvmlReturn_t write_path(const char *path, const char *text) {
    char fresh[PATH_SIZE];
    const char *slash = strrchr(path, '/');
    nvmlReturn_t result = make_folders(path, false);
    if (result != NVML_SUCCESS)
        return result;
    int length = snprintf(fresh, sizeof fresh, "%.*s/.new-XXXXXX", (int)(slash - path), path);
    if (length < 0 || (size_t)length >= sizeof fresh)
        return NVML_ERROR_UNKNOWN;
    int file = mkstemp(fresh);
    if (file < 0)
        return from_errno(fresh);
    size_t size = strlen(text), done = 0;
    while (done < size) {
        ssize_t wrote = write(file, text + done, size - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            break;
        done += (size_t)wrote;
    }
    if (done < size || fchmod(file, 0644) != 0 || rename(fresh, path) != 0) {
        result = from_errno(path);
        unlink(fresh);
    }
    close(file);
    return result;
}

/* Append text, or say that there is no room for it. */
static bool add_text(char *out, size_t size, size_t *have, const char *text, size_t length) {
    if (*have + length >= size)
        return false;
    memcpy(out + *have, text, length);
    *have += length;
    out[*have] = '\0';
    return true;
}

/* The file's text with the line of that name replaced, added, or with NULL as value left out. */
static bool with_line(const char *text, const char *name, const char *value, char *out, size_t size) {
    size_t have = 0, name_length = strlen(name);
    bool placed = value == NULL;
    out[0] = '\0';
    for (const char *line = text; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        const char *start = line + strspn(line, " \t");
        bool same = strncmp(start, name, name_length) == 0;
        const char *after = start + (same ? name_length : 0);
        same = same && after[strspn(after, " \t")] == '=';
        if (!same && !(add_text(out, size, &have, line, length) && add_text(out, size, &have, "\n", 1)))
            return false;
        if (same && !placed) {
            if (!add_text(out, size, &have, name, name_length) || !add_text(out, size, &have, " = ", 3) ||
                !add_text(out, size, &have, value, strlen(value)) || !add_text(out, size, &have, "\n", 1))
                return false;
            placed = true;
        }
        line += length + (line[length] == '\n');
    }
    return placed || (add_text(out, size, &have, name, name_length) && add_text(out, size, &have, " = ", 3) &&
                      add_text(out, size, &have, value, strlen(value)) && add_text(out, size, &have, "\n", 1));
}

static bool is_lost_at_reboot(const char *path) {
    for (size_t n = 0; n < sizeof lost_at_reboot / sizeof lost_at_reboot[0]; n++) {
        size_t length = strlen(lost_at_reboot[n]);
        if (strncmp(path, lost_at_reboot[n], length) == 0 && (path[length] == '\0' || path[length] == '/'))
            return true;
    }
    return false;
}

/* A value of NULL removes. */
static nvmlReturn_t change(const char *layer, int gpu, const char *key, const char *value) {
    char path[512];
    char full[PATH_SIZE];
    char text[FILE_SIZE];
    char fresh[FILE_SIZE];
    const char *name = NULL;
    if (!split_key(key, path, &name) || !full_path(layer, gpu, path, full))
        return NVML_ERROR_UNKNOWN;
    if (value != NULL && (*value == '\0' || strlen(value) >= SIM_TEXT || strchr(value, '\n') != NULL)) {
        sim_debug("%s: '%.40s' is no value", key, value);
        return NVML_ERROR_UNKNOWN;
    }
    if (name == NULL && value != NULL) {
        snprintf(fresh, sizeof fresh, "%s\n", value);
        return write_path(full, fresh);
    }
    if (name == NULL)
        return unlink(full) == 0 || errno == ENOENT || errno == ENOTDIR ? NVML_SUCCESS : from_errno(full);
    nvmlReturn_t result = read_path(full, text, sizeof text);
    if (result == NVML_ERROR_NOT_SUPPORTED) {
        if (value == NULL)
            return NVML_SUCCESS;
        text[0] = '\0';
    } else if (result != NVML_SUCCESS) {
        return result;
    }
    if (!with_line(text, name, value, fresh, sizeof fresh)) {
        sim_debug("%s: the file would be too long", full);
        return NVML_ERROR_UNKNOWN;
    }
    return write_path(full, fresh);
}

static nvmlReturn_t change_locked(const char *layer, int gpu, const char *key, const char *value) {
    nvmlReturn_t result = sim_lock();
    if (result != NVML_SUCCESS)
        return result;
    if (*layer != '\0' && value != NULL)
        result = make_run();
    if (result == NVML_SUCCESS)
        result = change(layer, gpu, key, value);
    sim_unlock();
    return result;
}

static const char *layer_of(int gpu, const char *key) {
    char path[512];
    const char *name = NULL;
    return gpu != SIM_SYSTEM && split_key(key, path, &name) && is_lost_at_reboot(path) ? "/run" : "";
}

nvmlReturn_t sim_write(int gpu, const char *key, const char *value) {
    return value == NULL ? NVML_ERROR_INVALID_ARGUMENT : change_locked(layer_of(gpu, key), gpu, key, value);
}

nvmlReturn_t sim_write_u64(int gpu, const char *key, uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return sim_write(gpu, key, text);
}

nvmlReturn_t sim_write_volatile(int gpu, const char *key, const char *value) {
    return value == NULL ? NVML_ERROR_INVALID_ARGUMENT : change_locked("/run", gpu, key, value);
}

nvmlReturn_t sim_remove(int gpu, const char *key) {
    return change_locked(layer_of(gpu, key), gpu, key, NULL);
}

bool sim_may_change(void) {
    unsigned int allowed = 0;
    return geteuid() == 0 || (sim_u32(SIM_SYSTEM, "system/allow_users", &allowed) == NVML_SUCCESS && allowed == 1);
}
