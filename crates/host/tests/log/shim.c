/* A disk that keeps only what was synced.
 *
 * Preloaded into a process, it notes which bytes of the files below BREAKBULK_FROM are written, and copies them to
 * BREAKBULK_SHADOW when their file is synced. What is in the shadow is what a power cut would leave: bytes that were
 * never synced are not there. A name counts as kept when its directory was synced (NAME.kept).
 *
 * While the file BREAKBULK_FAIL exists, one sync fails as Linux does it: the bytes that could not be written count as
 * written from then on, so that a second sync succeeds and keeps nothing. The file is removed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct range { off_t at; size_t len; };
struct file { dev_t dev; ino_t ino; struct range *ranges; size_t count, room; };

static struct file files[64];
static size_t file_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t (*next_write)(int, const void *, size_t);
static ssize_t (*next_pwrite)(int, const void *, size_t, off_t);
static int (*next_fsync)(int);

__attribute__((constructor)) static void find(void) {
    next_write = dlsym(RTLD_NEXT, "write");
    next_pwrite = dlsym(RTLD_NEXT, "pwrite");
    next_fsync = dlsym(RTLD_NEXT, "fsync");
}

/* The name of a file below BREAKBULK_FROM; the empty name for that directory itself. */
static int name_of(int fd, char *name, size_t room) {
    char link[64], path[4096];
    const char *from = getenv("BREAKBULK_FROM");
    if (!from || !getenv("BREAKBULK_SHADOW")) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len <= 0) return 0;
    path[len] = 0;
    size_t head = strlen(from);
    if (strncmp(path, from, head) != 0 || (path[head] != 0 && path[head] != '/')) return 0;
    snprintf(name, room, "%s", path[head] ? path + head + 1 : "");
    return strchr(name, '/') == NULL;
}

static struct file *file_of(int fd) {
    struct stat stat;
    if (fstat(fd, &stat) != 0) return NULL;
    for (size_t i = 0; i < file_count; i++)
        if (files[i].dev == stat.st_dev && files[i].ino == stat.st_ino) return &files[i];
    if (file_count == sizeof files / sizeof *files) abort();
    files[file_count] = (struct file){ .dev = stat.st_dev, .ino = stat.st_ino };
    return &files[file_count++];
}

static void note(int fd, off_t at, size_t len) {
    char name[256];
    if (!name_of(fd, name, sizeof name) || !*name) return;
    pthread_mutex_lock(&lock);
    struct file *file = file_of(fd);
    if (file) {
        if (file->count == file->room) {
            file->room = file->room ? file->room * 2 : 64;
            file->ranges = realloc(file->ranges, file->room * sizeof *file->ranges);
            if (!file->ranges) abort();
        }
        file->ranges[file->count++] = (struct range){ at, len };
    }
    pthread_mutex_unlock(&lock);
}

ssize_t write(int fd, const void *bytes, size_t len) {
    ssize_t done = next_write(fd, bytes, len);
    int error = errno;
    if (done > 0 && fd > 2) {
        off_t end = lseek(fd, 0, SEEK_CUR);
        if (end >= done) note(fd, end - done, (size_t)done);
    }
    errno = error;
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at) {
    ssize_t done = next_pwrite(fd, bytes, len, at);
    int error = errno;
    if (done > 0) note(fd, at, (size_t)done);
    errno = error;
    return done;
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at) { return pwrite(fd, bytes, len, at); }

static void keep(int fd, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("BREAKBULK_SHADOW"), name);
    int to = open(path, O_WRONLY | O_CREAT, 0600);
    struct file *file = file_of(fd);
    struct stat stat;
    if (to < 0 || !file || fstat(fd, &stat) != 0) abort();
    for (size_t i = 0; i < file->count; i++) {
        char piece[65536];
        off_t at = file->ranges[i].at, end = at + (off_t)file->ranges[i].len;
        while (at < end) {
            size_t len = (size_t)(end - at) < sizeof piece ? (size_t)(end - at) : sizeof piece;
            ssize_t got = pread(fd, piece, len, at);
            if (got <= 0) break;
            if (next_pwrite(to, piece, (size_t)got, at) != got) abort();
            at += got;
        }
    }
    file->count = 0;
    if (ftruncate(to, stat.st_size) != 0) abort();
    close(to);
}

static void keep_names(int fd) {
    char path[4096];
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    if (!dir) abort();
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s.kept", getenv("BREAKBULK_SHADOW"), entry->d_name);
        close(open(path, O_WRONLY | O_CREAT, 0600));
    }
    closedir(dir);
}

static int synced(int fd) {
    char name[256];
    const char *fail = getenv("BREAKBULK_FAIL");
    int ours = name_of(fd, name, sizeof name);
    /* The shadow takes the place of the disk: no need to wait for that, too. */
    if (!ours) return next_fsync(fd);
    pthread_mutex_lock(&lock);
    int result = 0;
    if (*name && fail && unlink(fail) == 0) {
        struct file *file = file_of(fd);
        if (file) file->count = 0;
        errno = EIO;
        result = -1;
    } else if (*name) {
        keep(fd, name);
    } else {
        keep_names(fd);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int fsync(int fd) { return synced(fd); }
int fdatasync(int fd) { return synced(fd); }
