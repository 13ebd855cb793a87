/* Dies, or fails, at the n-th file operation below a folder. Loaded with LD_PRELOAD; armed by a call of shim_arm().
 *
 * An operation is what changes a file or its durability: open that creates, write, sync, rename, unlink, link, mkdir,
 * truncate. Each is counted before it is done; the one that is hit is not done (a write that is torn is half done).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, NAME = 4 };                /* classes of operations */
enum { COUNT = 0, DIE = 1, DIE_TORN = 2, FAIL = 3, FAIL_ON = 4, SKIP = 5 }; /* what to do at the n-th */

static char root[4096];
static size_t root_length;
static atomic_long counted;
static long target;
static int classes, action, error_number, trace = -1;

void shim_arm(const char *folder, long nth, int what, int which, int error, int trace_to) {
    root_length = 0;
    strncpy(root, folder, sizeof root - 1);
    target = nth, action = what, classes = which, error_number = error, trace = trace_to;
    atomic_store(&counted, 0);
    root_length = strlen(root);
}

long shim_counted(void) { return atomic_load(&counted); }

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }
#define REAL(type, name, parameters) static type (*next) parameters; if (!next) next = real(name)

static void note(long number, const char *operation, const char *path) {
    char line[4400];
    if (trace < 0) return;
    int length = snprintf(line, sizeof line, "%ld %s %s\n", number, operation, path + root_length);
    REAL(ssize_t, "write", (int, const void *, size_t));
    if (next(trace, line, (size_t)length) < 0) return;
}

/* 0: go on; 1: fail with errno set; 2: write a half, then die; 3: pretend to have done it. */
static int at(int class, const char *operation, const char *path) {
    if (!root_length || !(classes & class) || strncmp(path, root, root_length)) return 0;
    long number = atomic_fetch_add(&counted, 1) + 1;
    note(number, operation, path);
    if (action == COUNT || number < target || (action != FAIL_ON && action != SKIP && number > target)) return 0;
    if (action == DIE_TORN && class == WRITE) return 2;
    if (action == DIE || action == DIE_TORN) kill(getpid(), SIGKILL);
    if (action == SKIP) return 3;
    errno = error_number;
    return 1;
}

static int at_file(int class, const char *operation, int descriptor) {
    char link[64], path[4096];
    if (!root_length || !(classes & class)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return at(class, operation, path);
}

static int at_name(const char *operation, int folder, const char *name) {
    char link[64], path[8192];
    if (!root_length) return 0;
    if (name[0] == '/' || folder == AT_FDCWD) return at(NAME, operation, name);
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, path, 4095);
    if (length < 0) return 0;
    snprintf(path + length, sizeof path - (size_t)length, "/%s", name);
    return at(NAME, operation, path);
}

#define SYNCS(name) \
    int name(int descriptor) { \
        REAL(int, #name, (int)); \
        int hit = at_file(SYNC, #name, descriptor); \
        return hit == 1 ? -1 : hit == 3 ? 0 : next(descriptor); \
    }
SYNCS(fsync)
SYNCS(fdatasync)

ssize_t write(int descriptor, const void *bytes, size_t count) {
    REAL(ssize_t, "write", (int, const void *, size_t));
    int hit = at_file(WRITE, "write", descriptor);
    if (hit == 2) { if (next(descriptor, bytes, count / 2) >= 0) kill(getpid(), SIGKILL); }
    return hit == 1 ? -1 : next(descriptor, bytes, count);
}

#define PWRITES(name) \
    ssize_t name(int descriptor, const void *bytes, size_t count, off_t offset) { \
        REAL(ssize_t, #name, (int, const void *, size_t, off_t)); \
        int hit = at_file(WRITE, "pwrite", descriptor); \
        if (hit == 2) { if (next(descriptor, bytes, count / 2, offset) >= 0) kill(getpid(), SIGKILL); } \
        return hit == 1 ? -1 : next(descriptor, bytes, count, offset); \
    }
PWRITES(pwrite)
PWRITES(pwrite64)

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", (int, const struct iovec *, int));
    int hit = at_file(WRITE, "writev", descriptor);
    if (hit == 2) kill(getpid(), SIGKILL);
    return hit == 1 ? -1 : next(descriptor, parts, count);
}

#define TRUNCATES(name) \
    int name(int descriptor, off_t size) { \
        REAL(int, #name, (int, off_t)); \
        int hit = at_file(WRITE, "ftruncate", descriptor); \
        if (hit == 2) kill(getpid(), SIGKILL); \
        return hit == 1 ? -1 : next(descriptor, size); \
    }
TRUNCATES(ftruncate)
TRUNCATES(ftruncate64)

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        REAL(int, #name, (const char *, int, ...)); \
        if ((flags & O_CREAT) && access(path, F_OK) && at_name("create", AT_FDCWD, path) == 1) return -1; \
        return next(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

#define OPENATS(name) \
    int name(int folder, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        REAL(int, #name, (int, const char *, int, ...)); \
        if ((flags & O_CREAT) && faccessat(folder, path, F_OK, 0) && at_name("create", folder, path) == 1) return -1; \
        return next(folder, path, flags, mode); \
    }
OPENATS(openat)
OPENATS(openat64)

int rename(const char *from, const char *to) {
    REAL(int, "rename", (const char *, const char *));
    return at_name("rename", AT_FDCWD, to) == 1 ? -1 : next(from, to);
}
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    REAL(int, "renameat", (int, const char *, int, const char *));
    return at_name("rename", to_folder, to) == 1 ? -1 : next(from_folder, from, to_folder, to);
}
int link(const char *from, const char *to) {
    REAL(int, "link", (const char *, const char *));
    return at_name("link", AT_FDCWD, to) == 1 ? -1 : next(from, to);
}
int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    REAL(int, "linkat", (int, const char *, int, const char *, int));
    return at_name("link", to_folder, to) == 1 ? -1 : next(from_folder, from, to_folder, to, flags);
}
int unlink(const char *path) {
    REAL(int, "unlink", (const char *));
    return at_name("unlink", AT_FDCWD, path) == 1 ? -1 : next(path);
}
int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", (int, const char *, int));
    return at_name("unlink", folder, path) == 1 ? -1 : next(folder, path, flags);
}
int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", (const char *, mode_t));
    return at_name("mkdir", AT_FDCWD, path) == 1 ? -1 : next(path, mode);
}
