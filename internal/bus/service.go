package bus

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"

	"github.com/nats-io/nats.go/micro"

	"github.com/toolmesh/toolmesh/subjects"
)

// ServiceConfig describes this process to `nats micro ls`, `info` and `stats`.
type ServiceConfig struct {
	// Name is mesh-agent, mesh-router or the service's own: [A-Za-z0-9_-].
	Name string
	// Version is the program's. NATS takes semantic versions only: any other text
	// is shown as the build of 0.0.0.
	Version string
	// Description is one sentence.
	Description string
	// Metadata holds the node id and the like. It cannot be changed later.
	Metadata map[string]string
	// Status names an endpoint that answers with Stats, and the subject that it
	// takes. Without it `nats micro stats` shows no figures. Defaults to none.
	Status, StatusSubject string
	// Stats returns what is shown of the endpoint; it must marshal to JSON and be
	// quick. Defaults to nothing.
	Stats func() any
}

// Service is this process in the list of micro services.
type Service struct{ svc micro.Service }

// StartService lists this process as a NATS micro service. One per process is
// the rule; tools are no endpoints of it. micro chains itself before the
// connection's closed and error handlers: set your own before.
func (b *Bus) StartService(c ServiceConfig) (*Service, error) {
	config := micro.Config{
		Name: c.Name, Version: semantic(c.Version), Description: c.Description, Metadata: c.Metadata,
		ErrorHandler: func(_ micro.Service, err *micro.NATSError) {
			b.log.Warn("service error", slog.String("error", err.Error()))
		},
	}
	if c.Stats != nil {
		config.StatsHandler = func(*micro.Endpoint) any { return c.Stats() }
	}
	svc, err := micro.AddService(b.nc, config)
	if err != nil {
		return nil, fmt.Errorf("list the process as micro service %q: %w", c.Name, err)
	}
	if c.Status != "" {
		err := svc.AddEndpoint(c.Status, micro.HandlerFunc(func(r micro.Request) {
			if !subjects.ReplyAllowed(r.Reply(), "", false) {
				return
			}
			var stats any
			if c.Stats != nil {
				stats = c.Stats()
			}
			body, err := json.Marshal(stats)
			if err == nil {
				err = r.Respond(body)
			}
			if err != nil {
				b.log.Warn("status not answered", errorAttr(err))
			}
		}), micro.WithEndpointSubject(c.StatusSubject), micro.WithEndpointQueueGroupDisabled())
		if err != nil {
			_ = svc.Stop()
			return nil, fmt.Errorf("endpoint %q of micro service %q: %w", c.Status, c.Name, err)
		}
	}
	return &Service{svc: svc}, nil
}

var (
	semver   = regexp.MustCompile(`^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)
	notBuild = regexp.MustCompile(`[^0-9A-Za-z]+`)
)

// semantic makes a semantic version of any text.
func semantic(version string) string {
	version = strings.TrimPrefix(version, "v")
	if semver.MatchString(version) {
		return version
	}
	if build := strings.Trim(notBuild.ReplaceAllString(version, "-"), "-"); build != "" {
		return "0.0.0+" + build
	}
	return "0.0.0"
}

// ID is the service's id in the answers of `nats micro`.
func (s *Service) ID() string { return s.svc.Info().ID }

// Stop takes the process off the list. It may be called more than once.
func (s *Service) Stop() error {
	if err := s.svc.Stop(); err != nil {
		return fmt.Errorf("stop the micro service: %w", err)
	}
	return nil
}
