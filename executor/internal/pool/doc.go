// Package pool runs calls in a set of equal worker processes: it queues calls, gives
// them to workers, starts and ends workers by need, replaces old ones, and tells calls
// how their worker ended.
//
// A [Pool] is given a [Config] and a function that starts one worker process. It knows
// neither indexes nor zygotes: a [Process] is an interface, so that the pool is tested
// with processes that are written in Go.
//
// # One owner of the state
//
// All mutable state is in one value, state, behind one lock. Only [Pool.update] changes it,
// through a function that records an event: a call came, a call ended, a worker became ready, a
// process ended, a timer fired. At its end update compares the state with the wanted one
// (state.settle): it gives queued calls to workers with room, starts missing workers and
// arranges the next look. So no event can skip a step, and no method needs a comment that the
// lock must be held: methods of state are called in updates. Slow work (sending frames,
// starting and ending processes) happens after the update or in a goroutine of the pool, and
// reports its outcome by another update.
//
// # States of a call
//
//	                       no worker has room                a worker has room
//	Call ──> refused      ┌───────────────────> [ queued ] ─────────────┐
//	  │   (closed, state  │                         │                    v
//	  │    of a session   │                         │ ctx ends,    [ running ] <─┐ signalled
//	  │    lost, must not │                         │ pool ends       │  │  └────┘ again
//	  │    wait)          │                         v                 │  │ ctx ends, limit
//	  └───────────────────┴── a worker has room ──> ended             │  v exceeded, End
//	                                                 ^                │ [ cancelled ]
//	                                                 │  the worker's  │  │
//	                                                 ├── answer ──────┴──┤
//	                                                 └── its worker ended│
//	                                                     or, after the grace, was killed
//
// # States of a worker
//
//	spawn       READY        a call          answer
//	──> [ starting ] ──> [ idle ] ──> [ busy ] ──> [ idle ]
//	        │               │           │  │
//	        │               │           │  │ recycled, End, used up by its call,
//	        │               │           │  │ grace passed, session ended
//	        │               │           │  v
//	        │               │           │ [ retired ]  takes no further call
//	        │               │           │     │ last answer
//	        │               │ idle for  │     v
//	        │               └─ long ────┼──> [ ending ]  told to exit, killed after the grace
//	        │ no READY                  │     │
//	        │ in time, killed           │     │
//	        v                           v     v
//	     [ finished ]  <── the process has ended: its calls fail, its end is counted as a
//	                       crash unless it was told to end, its resources are released
//
// A worker of coroutines is idle and busy at once, up to 1,024 calls; one whose event
// loop sends no keepalive for a second is blocked, and gets no new calls until it does. A
// worker that serves one call goes from busy to ending. When a session's worker is lost, the
// next call fails once, because its state was lost.
//
// # Why it is safe
//
//   - A call is in one place: the queue, or one worker. Both are changed in updates.
//   - A worker is finished once, by whichever goroutine finds its end: the one that reads
//     from it (of plain functions the caller's own, of coroutines one for all its calls),
//     or the one that waits for the process, if no goroutine reads.
//   - Nothing waits with the lock held: frames are written without blocking, and signals
//     do not block. Locks are taken in this order: logMu, then the pool's, then writeMu.
//   - Calls that tools make do not wait for each other in a circle: see admission.go.
//   - Close ends every goroutine: each belongs to the pool's wait group.
//
// The watchdog (watchdog.go) measures the processes that run calls with limits, and reports in
// an update. A [Quarantine] belongs to a tool, not to a pool: it takes the [Verdict] of each
// call, and refuses calls of a tool that keeps killing its workers.
//
// The package does not start processes by itself, does not parse results, and knows of
// indexes and sessions only their names.
package pool
