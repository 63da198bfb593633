/* Copyright (c) 2026, The baremetal.inference contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#include "reset.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "faults.h"
#include "state.h"

static const char *const kept_at_reset[] = {"ecc/current", "lost", "mig/pending", "persistence_mode"};

static bool is_kept(const char *path) {
    for (size_t n = 0; n < sizeof kept_at_reset / sizeof kept_at_reset[0]; n++)
        if (strcmp(path, kept_at_reset[n]) == 0)
            return true;
    return false;
}

/* `top` is the GPU's folder in run/, `below` a path in it or "". */
static nvmlReturn_t forget(const char *top, const char *below) {
    char full[2048];
    char path[512];
    nvmlReturn_t result = NVML_SUCCESS;
    snprintf(full, sizeof full, "%s/%s", top, below);
    DIR *folder = opendir(full);
    if (folder == NULL)
        return errno == ENOENT ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
    for (const struct dirent *entry; result == NVML_SUCCESS && (entry = readdir(folder)) != NULL;) {
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        int length = snprintf(path, sizeof path, "%s%s%s", below, *below == '\0' ? "" : "/", entry->d_name);
        if (length < 0 || (size_t)length >= sizeof path ||
            (size_t)snprintf(full, sizeof full, "%s/%s", top, path) >= sizeof full || lstat(full, &info) != 0)
            result = NVML_ERROR_UNKNOWN;
        else if (S_ISDIR(info.st_mode)) {
            result = forget(top, path);
            if (result == NVML_SUCCESS && rmdir(full) != 0 && errno != ENOTEMPTY && errno != EEXIST)
                result = NVML_ERROR_UNKNOWN;
        } else if (!is_kept(path) && unlink(full) != 0)
            result = errno == EACCES || errno == EPERM ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_UNKNOWN;
    }
    closedir(folder);
    return result;
}

/* Any line that is not a comment is a process. */
static nvmlReturn_t check_unused(int gpu) {
    char text[65536];
    unsigned int persistence = 0;
    nvmlReturn_t result = sim_file(gpu, "processes", text, sizeof text);
    if (result != NVML_SUCCESS && result != NVML_ERROR_NOT_SUPPORTED)
        return result;
    for (char *line = text; result == NVML_SUCCESS && *line != '\0';) {
        size_t length = strcspn(line, "\n");
        size_t start = strspn(line, " \t\r");
        if (start < length && line[start] != '#')
            return NVML_ERROR_IN_USE;
        line += length + (line[length] == '\n');
    }
    result = sim_u32(gpu, "persistence_mode", &persistence);
    if (result == NVML_SUCCESS && persistence != 0)
        return NVML_ERROR_IN_USE;
    return result == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : result;
}

static nvmlReturn_t reset_locked(int gpu) {
    char top[2048];
    nvmlReturn_t result = check_unused(gpu);
    if (result != NVML_SUCCESS)
        return result;
    if ((size_t)snprintf(top, sizeof top, "%s/run/gpu%d", sim_directory(), gpu) >= sizeof top)
        return NVML_ERROR_UNKNOWN;
    return forget(top, "");
}

nvmlReturn_t sim_reset(int gpu) {
    nvmlReturn_t result = sim_fault("gpuReset", gpu);
    if (result == SIM_FAULT_SUCCESS)
        return NVML_SUCCESS;
    if (result != NVML_SUCCESS)
        return result;
    if (!sim_may_change())
        return NVML_ERROR_NO_PERMISSION;
    result = sim_lock();
    if (result != NVML_SUCCESS)
        return result;
    result = reset_locked(gpu);
    sim_unlock();
    return result;
}
