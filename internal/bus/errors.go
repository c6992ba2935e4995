package bus

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// errorHandlers are the connections that a [Bus] is on: nats.go has one error
// handler for each, and several of ours want to be told.
var errorHandlers = struct {
	sync.Mutex
	of map[*nats.Conn]*errorHandler
}{of: make(map[*nats.Conn]*errorHandler)}

// errorHandler is a connection's error handler: it tells each Bus, and then the
// handler that was there before.
type errorHandler struct {
	before nats.ErrHandler
	buses  atomic.Pointer[[]*Bus] // those on the connection; never changed in place
}

// listenToErrors has b told of the errors of its connection.
func listenToErrors(b *Bus) {
	all := &errorHandlers
	all.Lock()
	defer all.Unlock()
	h := all.of[b.nc]
	if h == nil {
		h = &errorHandler{before: b.nc.ErrorHandler()}
		h.buses.Store(new([]*Bus))
		all.of[b.nc] = h
		b.nc.SetErrorHandler(h.handle)
	}
	buses := append(slices.Clone(*h.buses.Load()), b)
	h.buses.Store(&buses)
}

// ignoreErrors ends that. The last Bus puts the connection's own handler back.
func ignoreErrors(b *Bus) {
	all := &errorHandlers
	all.Lock()
	defer all.Unlock()
	h := all.of[b.nc]
	if h == nil {
		return
	}
	buses := slices.DeleteFunc(slices.Clone(*h.buses.Load()), func(other *Bus) bool { return other == b })
	h.buses.Store(&buses)
	if len(buses) == 0 {
		delete(all.of, b.nc)
		b.nc.SetErrorHandler(h.before)
	}
}

func (h *errorHandler) handle(nc *nats.Conn, sub *nats.Subscription, err error) {
	for _, b := range *h.buses.Load() {
		b.asyncError(sub, err)
	}
	if h.before != nil {
		h.before(nc, sub, err)
	}
}
