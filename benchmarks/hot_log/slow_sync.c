/* Preloaded: fdatasync takes SLOW_SYNC_US longer, as on a disk across a network, and is counted. The real one runs too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

static atomic_long count;

long slow_sync_count(void) { return atomic_load(&count); }

int fdatasync(int descriptor) {
  static _Atomic(int (*)(int)) real;
  int (*call)(int) = atomic_load(&real);
  if (!call) atomic_store(&real, call = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync"));
  const char *text = getenv("SLOW_SYNC_US");
  long us = text ? atol(text) : 0;
  struct timespec delay = {us / 1000000, us % 1000000 * 1000};
  if (us > 0) nanosleep(&delay, NULL);
  atomic_fetch_add(&count, 1);
  return call(descriptor);
}
