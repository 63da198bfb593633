/* Copyright (c) 2026, The baremetal.inference contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */
#ifndef NVML_SIM_RESET_H
#define NVML_SIM_RESET_H

#include "abi.h"

/* Reset a GPU: forget what changed since the boot, but for what a reset keeps (KEPT_AT_RESET in nvml_sim.py). NVML has
 * no such function. Refused with NO_PERMISSION, GPU_IS_LOST, or IN_USE where a process or persistence mode holds it. */
nvmlReturn_t sim_reset(int gpu);

#endif
