package bus

import (
	"cmp"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"
)

// ConnectConfig adjusts [ConnectOptions].
type ConnectConfig struct {
	// Name is shown by the broker for the connection. Defaults to "toolmesh".
	Name string
	// RetryFirst makes nats.Connect return before the first broker answers and
	// go on trying. Defaults to false: no broker is an error at once.
	RetryFirst bool
	// Logger receives events of the connection; nil discards them.
	Logger *slog.Logger
}

// Reconnecting begins at reconnectFirst and doubles up to reconnectMost, with
// half of it random: a broker that restarts is found at once, and a thousand
// clients do not come back in one instant.
const (
	reconnectFirst = 50 * time.Millisecond
	reconnectMost  = 4 * time.Second
)

// connectWait is how long one broker may take to answer.
const connectWait = 5 * time.Second

// ConnectOptions is the mesh's connection policy: reconnect for ever, also
// after refused credentials, with growing and random pauses; no reconnect
// buffer, so that nothing is sent that was meant for the past; a ping every
// 10 s; writes that do not wait for a broker that does not read. A nil config is
// legal. Further options may follow these; one with a dialer of its own
// (nats.SetCustomDialer) gives the last point up.
func ConnectOptions(config *ConnectConfig) []nats.Option {
	c := cmp.Or(config, &ConnectConfig{})
	log := cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	unreadable := rate.Sometimes{Interval: time.Second}
	return []nats.Option{
		nats.Name(cmp.Or(c.Name, "toolmesh")),
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(reconnectDelay),
		nats.ReconnectBufSize(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(connectWait),
		nats.SetCustomDialer(&dialer{net.Dialer{Timeout: connectWait}}),
		nats.RetryOnFailedConnect(c.RetryFirst),
		nats.ConnectHandler(func(nc *nats.Conn) {
			log.Info("connected", slog.String("server", nc.ConnectedServerName()))
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err == nil { // closed by its owner
				log.Debug("disconnected")
				return
			}
			log.Warn("disconnected", errorAttr(err))
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info("reconnected", slog.String("server", nc.ConnectedServerName()))
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			if errors.Is(err, nats.ErrBadHeaderMsg) { // any sender can cause it
				unreadable.Do(func() { log.Warn("message with headers that cannot be read", slog.String("subject", subject)) })
				return
			}
			log.Warn("connection error", slog.String("subject", subject), errorAttr(err))
		}),
	}
}

func reconnectDelay(attempts int) time.Duration {
	d := reconnectMost
	if attempts < 7 {
		d = min(reconnectMost, reconnectFirst<<max(attempts-1, 0))
	}
	return d/2 + rand.N(d/2)
}

func errorAttr(err error) slog.Attr { return slog.String("error", err.Error()) }
