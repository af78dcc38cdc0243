# frozen_string_literal: true

require "mkmf"

# A missing header or function disables a part of the extension. It never stops the installation.
have_header("malloc.h")
%w[malloc_trim mallinfo2 mallinfo malloc_usable_size].each { |name| have_func(name, "malloc.h") }
have_header("sys/prctl.h")
have_header("linux/futex.h")
have_header("dlfcn.h")
have_library("dl", "dlsym") unless have_func("dlsym", "dlfcn.h")
have_library("pthread", "pthread_create") unless have_func("pthread_create", "pthread.h")
have_func("pthread_setname_np", "pthread.h")
have_func("rb_ext_ractor_safe", "ruby.h")
have_func("rb_gc_adjust_memory_usage", "ruby.h")
have_func("rb_postponed_job_preregister", ["ruby.h", "ruby/debug.h"])

# For dladdr and pthread_setname_np.
append_cppflags("-D_GNU_SOURCE")
append_cflags(%w[-std=gnu11 -Wall -Wno-unused-parameter -fvisibility=hidden])
create_makefile("rbloat/rbloat")
