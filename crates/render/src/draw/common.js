'use strict';
// The part of the script that all pages share.

const count = number => number.toLocaleString('en-US');

/** Bytes in the largest binary unit that fits, as rbloat's text shows them. */
const size = bytes => bytes < 1000 ? `${bytes} B` : bytes < 1000 * 2 ** 10 ? `${(bytes / 2 ** 10).toFixed(1)} KiB`
  : bytes < 10000 * 2 ** 20 ? `${(bytes / 2 ** 20).toFixed(1)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
