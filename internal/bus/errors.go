package bus

import (
	"slices"
	"sync"

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
	buses  []*Bus // those on the connection
}

// listenToErrors has b told of the errors of its connection.
func listenToErrors(b *Bus) {
	all := &errorHandlers
	all.Lock()
	defer all.Unlock()
	h := all.of[b.nc]
	if h == nil {
		h = &errorHandler{before: b.nc.ErrorHandler()}
		all.of[b.nc] = h
		b.nc.SetErrorHandler(h.handle)
	}
	h.buses = append(h.buses, b)
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
	h.buses = slices.DeleteFunc(h.buses, func(other *Bus) bool { return other == b })
	if len(h.buses) == 0 {
		delete(all.of, b.nc)
		b.nc.SetErrorHandler(h.before)
	}
}

func (h *errorHandler) handle(nc *nats.Conn, sub *nats.Subscription, err error) {
	errorHandlers.Lock()
	buses := slices.Clone(h.buses)
	errorHandlers.Unlock()
	for _, b := range buses {
		b.asyncError(sub, err)
	}
	if h.before != nil {
		h.before(nc, sub, err)
	}
}
