// Copyright: (c) 2026, The baremetal.inference contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// The SHA-256 of the key that a request carries, in hex, or "" when it carries none in a form that is accepted.
// Only the hash leaves this function: nginx looks it up in a map, and no file on the gateway holds a key.
// The name keySha256 is what the site file imports; it must not change, because this file lands before that one.

import crypto from 'crypto';

// RFC 6750, 2.1 allows a narrower alphabet; keys of other makers contain more, so every visible ASCII character does.
const BEARER = /^Bearer +([\x21-\x7e]+)$/i;
const KEY = /^[\x21-\x7e]+$/;

function keySha256(r) {
    const authorization = r.headersIn['Authorization'];
    const match = authorization === undefined
        // Anthropic's client libraries send their key this way.
        ? KEY.exec(r.headersIn['X-Api-Key'] || '')
        // A request that says Authorization is judged by it alone, so that there are never two answers.
        : BEARER.exec(authorization);
    if (match === null) {
        return '';
    }
    return crypto.createHash('sha256').update(match[match.length - 1]).digest('hex');
}

export default { keySha256 };
