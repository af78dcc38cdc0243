/* Forked.threads: forks in C, without Ruby's knowledge, and returns the number of threads in the child. */
#include <dirent.h>
#include <ruby.h>
#include <sys/wait.h>
#include <unistd.h>

static int count_threads(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    if (!folder) return 0;
    for (struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static VALUE threads(VALUE self)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(count_threads());
    if (child < 0 || waitpid(child, &status, 0) != child) rb_sys_fail("fork");
    return INT2FIX(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

void Init_forked(void)
{
    rb_define_singleton_method(rb_define_module("Forked"), "threads", threads, 0);
}
