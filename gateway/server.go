package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
)

const (
	headerTime  = 10 * time.Second // that a request's header may take
	idleTime    = 2 * time.Minute  // that a connection may be without a request
	headerBytes = 32 << 10
	maxConns    = 20_000
	stopTime    = 2 * time.Second
	leaveTime   = time.Second // that the last events of streams may take
)

// ListenOptions says where and how a [Server] listens.
type ListenOptions struct {
	// Address is HOST:PORT; port 0 takes a free one.
	Address string
	// CertFile and KeyFile have it speak TLS. Default to none.
	CertFile, KeyFile string
	// Insecure permits an address that other machines reach without TLS.
	Insecure bool
}

// ErrInsecure refuses an address that other machines reach: tokens would travel there in the clear.
var ErrInsecure = errors.New("other machines reach this address, and tokens would travel in the clear: serve TLS, or say that something in front of it does")

// Server serves a gateway on an address, with bounds on all that a client may make it hold.
type Server struct {
	g       *Gateway
	http    *http.Server
	address string
	scheme  string
	wg      sync.WaitGroup
}

// Listen begins to serve a gateway, which it closes when it stops.
func Listen(ctx context.Context, g *Gateway, o ListenOptions) (*Server, error) {
	if _, _, err := net.SplitHostPort(o.Address); err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%q is no address: write HOST:PORT", o.Address)
	}
	if !namesLoopback(o.Address) && !o.Insecure && o.CertFile == "" {
		return nil, ErrInsecure
	}
	s := &Server{g: g, scheme: "http://"}
	var config *tls.Config
	if o.CertFile+o.KeyFile != "" {
		certificate, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "read the certificate %s and its key %s: %w", o.CertFile, o.KeyFile, err)
		}
		config = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
		s.scheme = "https://"
	}
	var l net.ListenConfig
	listener, err := l.Listen(ctx, "tcp", o.Address)
	if err != nil {
		return nil, err
	}
	s.address = listener.Addr().String()
	if at, ok := listener.Addr().(*net.TCPAddr); ok && at.IP.IsUnspecified() {
		s.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(at.Port)) // which a client can reach
	}
	var conns atomic.Int64
	s.http = &http.Server{
		Handler: g, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerBytes, TLSConfig: config,
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug), // what clients do wrong
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				if conns.Add(1) > maxConns {
					_ = c.Close() // it is closed once more, by the server, which counts it off
				}
			case http.StateClosed, http.StateHijacked: // one of them, once
				conns.Add(-1)
			}
		},
	}
	s.wg.Go(func() {
		if config != nil {
			err = s.http.ServeTLS(listener, "", "")
		} else {
			err = s.http.Serve(listener)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			g.log.Error("the gateway serves no more", slog.String("error", err.Error()))
		}
	})
	return s, nil
}

// URL is where the gateway is served. Of an address that stands for all of this machine's it names the loopback one.
func (s *Server) URL() string { return s.scheme + s.address }

// Stop lets requests end for two seconds, and then closes the gateway, which tells the readers of
// streams. It closes the connections that are left a second later.
func (s *Server) Stop() {
	s.g.closing.Store(true)
	err := s.shutdown(stopTime)
	s.g.Close()
	if err != nil && s.shutdown(leaveTime) != nil {
		_ = s.http.Close()
	}
	s.wg.Wait()
}

func (s *Server) shutdown(most time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	return s.http.Shutdown(ctx)
}
