; The threads that run the parallel loops of kernels, as LLVM reads it. `thread_pool.py` fills in names in capitals.
;
; TVM's code calls a launcher: launch(part, data, count) runs part(number, environment, data) for every
; number below `count`; where `count` is 0 the launcher chooses it. What is here that TVM's own launcher
; has not, because on a machine that does something else too a thread may get no core for milliseconds:
;   - parts are small and claimed one by one: who has a core does more of them;
;   - the caller works too, and waits for those only who have claimed something, never for a late one;
;   - who waits spins for some microseconds, then sleeps: no core is kept from others;
;   - a worker that last ran where the caller runs is sent elsewhere: Linux wakes it there, idle cores or not;
;   - each calling thread has its own number of threads; callers at the same time have pools of their own;
;   - where there is one thread, or no pool is free, the caller does all parts by itself; so it does where a
;     loop took it less than waking others takes, the last time: sizes that are not known may be small.
;
; word, the state of a pool, changes as a whole:
;   bits 32-63  the launch's number, on which idle workers sleep
;   bit 31      open: there may be parts to claim
;   bit 30      the caller sleeps on the lower half until nobody is at work
;   bit 29      workers must end
;   bits 16-28  how many more workers may join
;   bits 0-15   workers that have joined and not left

target triple = "$TRIPLE"

; word, sleeping workers | next part | part, data, count, the part that failed or -1, workers made, taken
%pool = type { i64, i32, [52 x i8], i32, [60 x i8], ptr, ptr, i32, i32, i32, i32, [32 x i8] }
; its pool, pthread's and Linux's name of it, 1 + the processor on which it was seen last or 0
%worker = type { ptr, i64, i32, i32, [40 x i8] }
%environment = type { ptr, i32 }

@pools = internal global [$POOLS x %pool] zeroinitializer, align 64
@workers = internal global [$POOLS x [$MOST_WORKERS x %worker]] zeroinitializer, align 64
@key = internal global i32 0
; By a loop's address, the loop and the nanoseconds that one thread takes for it.
@lasts = internal global [256 x { ptr, i64 }] zeroinitializer, align 64
@symbol = private constant [27 x i8] c"__TVMBackendParallelLaunch\00"
@kind = private constant [13 x i8] c"RuntimeError\00"
@reason = private constant [52 x i8] c"a part of a parallel loop failed and gave no reason\00"
@no_key = private constant [56 x i8] c"the system gives no more thread-specific keys (pthread)\00"

declare i32 @TVMFFIEnvModRegisterContextSymbol(ptr, ptr)
declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)
declare i32 @pthread_key_create(ptr, ptr)
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i32 @clock_gettime(i32, ptr)
declare i64 @syscall(i64, ...)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal i64 @now() {
  %time = alloca { i64, i64 }
  %error = call i32 @clock_gettime(i32 1, ptr %time)
  %rest.at = getelementptr { i64, i64 }, ptr %time, i32 0, i32 1
  %seconds = load i64, ptr %time
  %rest = load i64, ptr %rest.at
  %whole = mul i64 %seconds, 1000000000
  %all = add i64 %whole, %rest
  ret i64 %all
}

define internal void @sleep(ptr %address, i32 %expected) {
  %r = call i64 (i64, ...) @syscall(i64 $FUTEX, ptr %address, i32 128, i32 %expected, ptr null, ptr null, i32 0)
  ret void
}

define internal void @wake(ptr %address, i32 %most) {
  %r = call i64 (i64, ...) @syscall(i64 $FUTEX, ptr %address, i32 129, i32 %most, ptr null, ptr null, i32 0)
  ret void
}

define internal i32 @run(ptr %part, ptr %data, i32 %number, i32 %count) {
  %env = alloca %environment
  store ptr null, ptr %env
  %env.count = getelementptr %environment, ptr %env, i32 0, i32 1
  store i32 %count, ptr %env.count
  %status = call i32 %part(i32 %number, ptr %env, ptr %data)
  ret i32 %status
}

; Claim parts until there are none, or one fails. Returns how many there were.
define internal i32 @work(ptr %pool) {
entry:
  %next = getelementptr %pool, ptr %pool, i32 0, i32 3
  %part.at = getelementptr %pool, ptr %pool, i32 0, i32 5
  %data.at = getelementptr %pool, ptr %pool, i32 0, i32 6
  %count.at = getelementptr %pool, ptr %pool, i32 0, i32 7
  %part = load ptr, ptr %part.at
  %data = load ptr, ptr %data.at
  %count = load i32, ptr %count.at
  br label %claim
claim:
  %done = phi i32 [ 0, %entry ], [ %more, %run ]
  %number = atomicrmw add ptr %next, i32 1 monotonic
  %there = icmp ult i32 %number, %count
  br i1 %there, label %run, label %end
run:
  %status = call i32 @run(ptr %part, ptr %data, i32 %number, i32 %count)
  %fine = icmp eq i32 %status, 0
  %more = add i32 %done, 1
  br i1 %fine, label %claim, label %failed
failed:
  %failed.at = getelementptr %pool, ptr %pool, i32 0, i32 8
  %first = cmpxchg ptr %failed.at, i32 -1, i32 %number monotonic monotonic
  store atomic i32 %count, ptr %next monotonic, align 4
  br label %end
end:
  ret i32 %done
}

; Note where the worker runs.
define internal void @seen(ptr %self) {
  %cpu.at = getelementptr %worker, ptr %self, i32 0, i32 3
  %cpu = call i32 @sched_getcpu()
  %noted = add i32 %cpu, 1
  store atomic i32 %noted, ptr %cpu.at monotonic, align 4
  ret void
}

define internal ptr @worker(ptr %self) {
entry:
  %pool = load ptr, ptr %self
  %tid.at = getelementptr %worker, ptr %self, i32 0, i32 2
  %own = call i64 (i64, ...) @syscall(i64 $GETTID)
  %tid = trunc i64 %own to i32
  store i32 %tid, ptr %tid.at
  fence release
  %launch.at = getelementptr i8, ptr %pool, i64 4
  %sleeping = getelementptr %pool, ptr %pool, i32 0, i32 1
  br label %idle
idle:
  %seen = phi i32 [ 0, %entry ], [ %seen.now, %left ], [ %seen, %awake ]
  br label %look
look:
  %left.spins = phi i32 [ $SPINS, %idle ], [ %fewer, %pause ]
  %word = load atomic i64, ptr %pool monotonic, align 8
  %ends = call i1 @has(i64 %word, i64 536870912)
  br i1 %ends, label %end, label %open
open:
  %may = call i1 @joinable(i64 %word, i32 %seen)
  br i1 %may, label %join, label %pause
pause:
  call void asm sideeffect "$PAUSE", ""()
  %fewer = sub i32 %left.spins, 1
  %tired = icmp eq i32 %fewer, 0
  br i1 %tired, label %tire, label %look
join:
  %one.more = sub i64 %word, 65535 ; one may join less, one more has
  %joined = cmpxchg ptr %pool, i64 %word, i64 %one.more acquire monotonic
  %in = extractvalue { i64, i1 } %joined, 1
  br i1 %in, label %busy, label %pause
busy:
  %upper = lshr i64 %word, 32
  %seen.now = trunc i64 %upper to i32
  call void @seen(ptr %self)
  %parts = call i32 @work(ptr %pool)
  %before = atomicrmw sub ptr %pool, i64 1 acq_rel
  %after = sub i64 %before, 1
  %others = and i64 %after, 65535
  %last = icmp eq i64 %others, 0
  %waited = call i1 @has(i64 %after, i64 1073741824)
  %call = and i1 %last, %waited
  br i1 %call, label %tell, label %left
tell:
  call void @wake(ptr %pool, i32 1)
  br label %left
left:
  br label %idle
tire:
  ; The caller opens a launch and then looks for sleepers; a worker says that it sleeps and then looks for a launch.
  %s = atomicrmw add ptr %sleeping, i32 1 seq_cst
  %now = load atomic i64, ptr %pool seq_cst, align 8
  %may.now = call i1 @joinable(i64 %now, i32 %seen)
  %ends.now = call i1 @has(i64 %now, i64 536870912)
  %stay = or i1 %may.now, %ends.now
  br i1 %stay, label %awake, label %rest
rest:
  %upper.now = lshr i64 %now, 32
  %launch = trunc i64 %upper.now to i32
  call void @seen(ptr %self)
  call void @sleep(ptr %launch.at, i32 %launch)
  br label %awake
awake:
  %t = atomicrmw sub ptr %sleeping, i32 1 seq_cst
  br label %idle
end:
  ret ptr null
}

define internal i1 @has(i64 %word, i64 %bit) {
  %held = and i64 %word, %bit
  %there = icmp ne i64 %held, 0
  ret i1 %there
}

; Whether a launch is open that the worker has not been in and that takes one more.
define internal i1 @joinable(i64 %word, i32 %seen) {
  %open = call i1 @has(i64 %word, i64 2147483648)
  %room = call i1 @has(i64 %word, i64 536805376)
  %upper = lshr i64 %word, 32
  %launch = trunc i64 %upper to i32
  %new = icmp ne i32 %launch, %seen
  %a = and i1 %open, %room
  %b = and i1 %a, %new
  ret i1 %b
}

; All parts in the calling thread.
define internal i32 @alone(ptr %part, ptr %data, i32 %count) {
entry:
  br label %run
run:
  %number = phi i32 [ 0, %entry ], [ %following, %fine ]
  %status = call i32 @run(ptr %part, ptr %data, i32 %number, i32 %count)
  %good = icmp eq i32 %status, 0
  br i1 %good, label %fine, label %end
fine:
  %following = add i32 %number, 1
  %more = icmp ult i32 %following, %count
  br i1 %more, label %run, label %end
end:
  ret i32 %status
}

; Make workers until there are `wanted`, as far as the system lets us.
define internal void @grow(ptr %pool, i32 %index, i32 %wanted) {
entry:
  %made.at = getelementptr %pool, ptr %pool, i32 0, i32 9
  br label %check
check:
  %made = load i32, ptr %made.at
  %less = icmp ult i32 %made, %wanted
  br i1 %less, label %make, label %end
make:
  %self = getelementptr [$POOLS x [$MOST_WORKERS x %worker]], ptr @workers, i32 0, i32 %index, i32 %made
  %thread = getelementptr %worker, ptr %self, i32 0, i32 1
  store ptr %pool, ptr %self
  %error = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr %self)
  %good = icmp eq i32 %error, 0
  br i1 %good, label %counted, label %end
counted:
  %more = add i32 %made, 1
  store i32 %more, ptr %made.at
  br label %check
end:
  ret void
}

; Keep a worker off a processor, where the caller may run on others too.
define internal void @move(ptr %self, i32 %cpu) {
entry:
  %set = alloca [16 x i64]
  call void @llvm.memset.p0.i64(ptr %set, i8 0, i64 128, i1 false)
  %got = call i32 @sched_getaffinity(i32 0, i64 128, ptr %set)
  %number = lshr i32 %cpu, 6
  %inside = icmp ult i32 %number, 16
  br i1 %inside, label %clear, label %end
clear:
  %at = getelementptr [16 x i64], ptr %set, i32 0, i32 %number
  %old = load i64, ptr %at
  %place = and i32 %cpu, 63
  %wide = zext i32 %place to i64
  %bit = shl i64 1, %wide
  %others = xor i64 %bit, -1
  %less = and i64 %old, %others
  store i64 %less, ptr %at
  br label %look
look:
  %i = phi i32 [ 0, %clear ], [ %following, %next ]
  %word.at = getelementptr [16 x i64], ptr %set, i32 0, i32 %i
  %word = load i64, ptr %word.at
  %some = icmp ne i64 %word, 0
  br i1 %some, label %set.it, label %next
next:
  %following = add i32 %i, 1
  %more = icmp ult i32 %following, 16
  br i1 %more, label %look, label %end
set.it:
  %tid.at = getelementptr %worker, ptr %self, i32 0, i32 2
  %tid = load i32, ptr %tid.at
  %ignored = call i32 @sched_setaffinity(i32 %tid, i64 128, ptr %set)
  br label %end
end:
  ret void
}

; Move those workers that were last seen where the caller runs.
define internal void @spread(i32 %index, i32 %helpers) {
entry:
  %cpu = call i32 @sched_getcpu()
  %noted = add i32 %cpu, 1
  br label %each
each:
  %i = phi i32 [ 0, %entry ], [ %following, %next ]
  %self = getelementptr [$POOLS x [$MOST_WORKERS x %worker]], ptr @workers, i32 0, i32 %index, i32 %i
  %cpu.at = getelementptr %worker, ptr %self, i32 0, i32 3
  %its = load atomic i32, ptr %cpu.at acquire, align 4
  %same = icmp eq i32 %its, %noted
  br i1 %same, label %away, label %next
away:
  store atomic i32 0, ptr %cpu.at monotonic, align 4
  call void @move(ptr %self, i32 %cpu)
  br label %next
next:
  %following = add i32 %i, 1
  %more = icmp ult i32 %following, %helpers
  br i1 %more, label %each, label %end
end:
  ret void
}

; Note what a loop takes one thread.
define internal void @note(ptr %last, ptr %part, i64 %time) {
  %time.at = getelementptr { ptr, i64 }, ptr %last, i32 0, i32 1
  store atomic ptr %part, ptr %last monotonic, align 8
  store atomic i64 %time, ptr %time.at monotonic, align 8
  ret void
}

define internal i32 @together(ptr %pool, i32 %helpers, ptr %part, ptr %data, i32 %count, ptr %last) {
entry:
  %sleeping = getelementptr %pool, ptr %pool, i32 0, i32 1
  %launch.at = getelementptr i8, ptr %pool, i64 4
  %next = getelementptr %pool, ptr %pool, i32 0, i32 3
  %part.at = getelementptr %pool, ptr %pool, i32 0, i32 5
  %data.at = getelementptr %pool, ptr %pool, i32 0, i32 6
  %count.at = getelementptr %pool, ptr %pool, i32 0, i32 7
  %failed.at = getelementptr %pool, ptr %pool, i32 0, i32 8
  store ptr %part, ptr %part.at
  store ptr %data, ptr %data.at
  store i32 %count, ptr %count.at
  store atomic i32 -1, ptr %failed.at monotonic, align 4
  store atomic i32 0, ptr %next monotonic, align 4
  %old = load atomic i64, ptr %pool monotonic, align 8
  %numbered = lshr i64 %old, 32
  %launch = add i64 %numbered, 1
  %upper = shl i64 %launch, 32
  %wide = zext i32 %helpers to i64
  %room = shl i64 %wide, 16
  %lower = or i64 %room, 2147483648
  %word = or i64 %upper, %lower
  %ignored = atomicrmw xchg ptr %pool, i64 %word seq_cst
  %asleep = load atomic i32, ptr %sleeping seq_cst, align 4
  %any = icmp ne i32 %asleep, 0
  br i1 %any, label %call, label %help
call:
  call void @wake(ptr %launch.at, i32 %helpers)
  br label %help
help:
  %begun = call i64 @now()
  %own = call i32 @work(ptr %pool)
  %ended = call i64 @now()
  %none.own = icmp eq i32 %own, 0
  br i1 %none.own, label %close, label %measure
measure:
  %time = sub i64 %ended, %begun
  %parts = zext i32 %count to i64
  %own.wide = zext i32 %own to i64
  %scaled = mul i64 %time, %parts
  %alone = udiv i64 %scaled, %own.wide
  call void @note(ptr %last, ptr %part, i64 %alone)
  br label %close
close:
  %closing = atomicrmw and ptr %pool, i64 -2147483649 acq_rel
  %inside = and i64 %closing, 65535
  %all = icmp eq i64 %inside, 0
  br i1 %all, label %over, label %spin
spin:
  %spins = phi i32 [ $SPINS, %close ], [ %fewer, %again ]
  %seen = load atomic i64, ptr %pool acquire, align 8
  %busy = and i64 %seen, 65535
  %none = icmp eq i64 %busy, 0
  br i1 %none, label %over, label %again
again:
  call void asm sideeffect "$PAUSE", ""()
  %fewer = sub i32 %spins, 1
  %tired = icmp eq i32 %fewer, 0
  br i1 %tired, label %tire, label %spin
tire:
  %before = atomicrmw or ptr %pool, i64 1073741824 acq_rel
  %still = and i64 %before, 65535
  %gone = icmp eq i64 %still, 0
  br i1 %gone, label %over, label %rest
rest:
  %marked = or i64 %before, 1073741824
  %expected = trunc i64 %marked to i32
  call void @sleep(ptr %pool, i32 %expected)
  br label %tire
over:
  %failed = load atomic i32, ptr %failed.at monotonic, align 4
  ret i32 %failed
}

define internal i32 @launch(ptr %part, ptr %data, i32 %asked) {
entry:
  %key = load i32, ptr @key
  %held = call ptr @pthread_getspecific(i32 %key)
  %wide = ptrtoint ptr %held to i64
  %threads = trunc i64 %wide to i32
  %given = icmp ne i32 %asked, 0
  %one = select i1 %given, i32 %asked, i32 1
  %several = icmp ugt i32 %threads, 1
  br i1 %several, label %look, label %single
look:
  %address = ptrtoint ptr %part to i64
  %line = lshr i64 %address, 4
  %number = and i64 %line, 255
  %last = getelementptr [256 x { ptr, i64 }], ptr @lasts, i64 0, i64 %number
  %whose = load atomic ptr, ptr %last monotonic, align 8
  %time.at = getelementptr { ptr, i64 }, ptr %last, i32 0, i32 1
  %time = load atomic i64, ptr %time.at monotonic, align 8
  %same = icmp eq ptr %whose, %part
  %little = icmp ult i64 %time, $LITTLE
  %short = and i1 %same, %little
  br i1 %short, label %quick, label %find
quick:
  %begun = call i64 @now()
  %quick.result = call i32 @alone(ptr %part, ptr %data, i32 %one)
  %ended = call i64 @now()
  %took = sub i64 %ended, %begun
  call void @note(ptr %last, ptr %part, i64 %took)
  ret i32 %quick.result
single:
  %result = call i32 @alone(ptr %part, ptr %data, i32 %one)
  ret i32 %result
find:
  %index = phi i32 [ 0, %look ], [ %following, %other ]
  %pool = getelementptr [$POOLS x %pool], ptr @pools, i32 0, i32 %index
  %taken = getelementptr %pool, ptr %pool, i32 0, i32 10
  %try = cmpxchg ptr %taken, i32 0, i32 1 acquire monotonic
  %got = extractvalue { i32, i1 } %try, 1
  br i1 %got, label %run, label %other
other:
  %following = add i32 %index, 1
  %more = icmp ult i32 %following, $POOLS
  br i1 %more, label %find, label %single
run:
  %others = sub i32 %threads, 1
  %fits = icmp ult i32 %others, $MOST_WORKERS
  %wanted = select i1 %fits, i32 %others, i32 $MOST_WORKERS
  call void @grow(ptr %pool, i32 %index, i32 %wanted)
  call void @spread(i32 %index, i32 %wanted)
  %many = mul i32 %threads, $PARTS
  %count = select i1 %given, i32 %asked, i32 %many
  %failed = call i32 @together(ptr %pool, i32 %wanted, ptr %part, ptr %data, i32 %count, ptr %last)
  store atomic i32 0, ptr %taken release, align 4
  %fine = icmp eq i32 %failed, -1
  br i1 %fine, label %good, label %repeat
repeat:
  ; A message belongs to the thread in which it arose: once more, here.
  %status = call i32 @run(ptr %part, ptr %data, i32 %failed, i32 %count)
  %told = icmp ne i32 %status, 0
  br i1 %told, label %bad, label %untold
untold:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @kind, ptr @reason)
  br label %bad
bad:
  ret i32 -1
good:
  ret i32 0
}

; setup(): kernels that are linked from now on use these pools.
define i32 @__tvm_ffi_setup(ptr %self, ptr %args, i32 %count, ptr %result) {
  %error = call i32 @pthread_key_create(ptr @key, ptr null)
  %good = icmp eq i32 %error, 0
  br i1 %good, label %register, label %bad
register:
  %r = call i32 @TVMFFIEnvModRegisterContextSymbol(ptr @symbol, ptr @launch)
  ret i32 %r
bad:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @kind, ptr @no_key)
  ret i32 -1
}

; use(n): kernels that the calling thread calls use n threads.
define i32 @__tvm_ffi_use(ptr %self, ptr %args, i32 %count, ptr %result) {
  %value.at = getelementptr i8, ptr %args, i64 8
  %value = load i64, ptr %value.at
  %held = inttoptr i64 %value to ptr
  %key = load i32, ptr @key
  %error = call i32 @pthread_setspecific(i32 %key, ptr %held)
  ret i32 0
}

; forget(): after a fork the child has no workers, and whoever held a pool is not there.
define i32 @__tvm_ffi_forget(ptr %self, ptr %args, i32 %count, ptr %result) {
  %end = getelementptr %pool, ptr null, i32 $POOLS
  %size = ptrtoint ptr %end to i64
  call void @llvm.memset.p0.i64(ptr @pools, i8 0, i64 %size, i1 false)
  %last = getelementptr [$POOLS x [$MOST_WORKERS x %worker]], ptr null, i32 1
  %all = ptrtoint ptr %last to i64
  call void @llvm.memset.p0.i64(ptr @workers, i8 0, i64 %all, i1 false)
  ret i32 0
}

; end(): end all workers of pools that nobody uses; kernels run in the calling thread from now on.
define i32 @__tvm_ffi_end(ptr %self, ptr %args, i32 %argc, ptr %result) {
entry:
  br label %each
each:
  %index = phi i32 [ 0, %entry ], [ %following, %next ]
  %pool = getelementptr [$POOLS x %pool], ptr @pools, i32 0, i32 %index
  %taken = getelementptr %pool, ptr %pool, i32 0, i32 10
  %try = cmpxchg ptr %taken, i32 0, i32 1 acquire monotonic
  %got = extractvalue { i32, i1 } %try, 1
  br i1 %got, label %close, label %next
close:
  %launch.at = getelementptr i8, ptr %pool, i64 4
  ; In this order: a worker that has not seen the bit does not fall asleep on the new number.
  %marked = atomicrmw or ptr %pool, i64 536870912 seq_cst
  %numbered = atomicrmw add ptr %pool, i64 4294967296 seq_cst
  call void @wake(ptr %launch.at, i32 2147483647)
  %made.at = getelementptr %pool, ptr %pool, i32 0, i32 9
  %made = load i32, ptr %made.at
  br label %rest
rest:
  %left = phi i32 [ %made, %close ], [ %number, %join ]
  %some = icmp ne i32 %left, 0
  br i1 %some, label %join, label %next
join:
  %number = sub i32 %left, 1
  %worker = getelementptr [$POOLS x [$MOST_WORKERS x %worker]], ptr @workers, i32 0, i32 %index, i32 %number
  %at = getelementptr %worker, ptr %worker, i32 0, i32 1
  %thread = load i64, ptr %at
  %r = call i32 @pthread_join(i64 %thread, ptr null)
  br label %rest
next:
  %following = add i32 %index, 1
  %more = icmp ult i32 %following, $POOLS
  br i1 %more, label %each, label %over
over:
  ret i32 0
}
