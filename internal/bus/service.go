package bus

import (
	"encoding/json"
	"maps"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/toolmesh/toolmesh"
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
	// Endpoint names the subject of the figures in Stats, and Subject is where they are
	// requested; the service itself does not subscribe to it. Defaults to none.
	Endpoint, Subject string
	// Stats returns the endpoint's figures; it must be quick. Defaults to zeros.
	Stats func() ServiceStats
}

// ServiceStats are the figures of a service's endpoint since it began.
type ServiceStats struct {
	Requests, Errors uint64
	Took             time.Duration // of all requests together
	Data             any           // marshals to JSON; nil for none
}

// Service is this process in the list of micro services. It answers as nats.go/micro does, in
// that package's types. That package itself would count only requests that it handles
// itself, so that it shows nothing of tools, and answers to any reply subject.
type Service struct {
	bus      *Bus
	config   ServiceConfig
	identity micro.ServiceIdentity
	started  time.Time
	subs     []*nats.Subscription
}

// listedWithin bounds the wait for the broker's word that it has the
// subscriptions of a service.
const listedWithin = 2 * time.Second

// CheckServiceName refuses a name that no micro service can have.
func CheckServiceName(name string) error {
	if !serviceName.MatchString(name) {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%q cannot be a micro service's name: letters, digits, _ and -", name)
	}
	return nil
}

// StartService lists this process as a NATS micro service. One per process is
// the rule; tools are no endpoints of it.
func (b *Bus) StartService(c ServiceConfig) (*Service, error) {
	if err := CheckServiceName(c.Name); err != nil {
		return nil, err
	}
	metadata := map[string]string{} // in JSON an object, also without members
	maps.Copy(metadata, c.Metadata)
	s := &Service{
		bus: b, config: c, started: time.Now().UTC(),
		identity: micro.ServiceIdentity{Name: c.Name, ID: uuid.NewString(), Version: semantic(c.Version), Metadata: metadata},
	}
	for verb, content := range map[micro.Verb]func() any{micro.PingVerb: s.ping, micro.InfoVerb: s.info, micro.StatsVerb: s.stats} {
		for _, target := range [][2]string{{"", ""}, {c.Name, ""}, {c.Name, s.identity.ID}} {
			subject, err := micro.ControlSubject(verb, target[0], target[1])
			if err != nil {
				return nil, toolmesh.Errorf(toolmesh.CodeInternal, "list the process as micro service %q: %w", c.Name, err)
			}
			sub, err := b.nc.Subscribe(subject, func(m *nats.Msg) { s.answer(m, content) })
			if err != nil {
				s.Stop()
				return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "list the process as micro service %q: %w", c.Name, err)
			}
			s.subs = append(s.subs, sub)
		}
	}
	if b.nc.IsConnected() {
		// A service that says that it is ready must be found; without a connection
		// the subscriptions go out with the next one.
		_ = b.nc.FlushTimeout(listedWithin)
	}
	return s, nil
}

func (s *Service) answer(m *nats.Msg, content func() any) {
	if !s.bus.MayAnswer(m, "") {
		return
	}
	body, _ := json.Marshal(content()) // of micro, with figures that were encoded before
	if err := s.bus.nc.Publish(m.Reply, body); err != nil {
		s.bus.log.Warn("service not described", errorAttr(err))
	}
}

func (s *Service) ping() any {
	return micro.Ping{ServiceIdentity: s.identity, Type: micro.PingResponseType}
}

func (s *Service) info() any {
	i := micro.Info{
		ServiceIdentity: s.identity, Type: micro.InfoResponseType, Description: s.config.Description, Endpoints: []micro.EndpointInfo{},
	}
	if s.config.Endpoint != "" {
		i.Endpoints = append(i.Endpoints, micro.EndpointInfo{
			Name: s.config.Endpoint, Subject: s.config.Subject, Metadata: map[string]string{},
		})
	}
	return i
}

func (s *Service) stats() any {
	all := micro.Stats{ServiceIdentity: s.identity, Type: micro.StatsResponseType, Started: s.started, Endpoints: []*micro.EndpointStats{}}
	if s.config.Endpoint == "" {
		return all
	}
	e := &micro.EndpointStats{Name: s.config.Endpoint, Subject: s.config.Subject}
	all.Endpoints = append(all.Endpoints, e)
	figures := ServiceStats{}
	if s.config.Stats != nil {
		figures = s.config.Stats()
	}
	e.NumRequests, e.NumErrors, e.ProcessingTime = int(figures.Requests), int(figures.Errors), figures.Took //nolint:gosec // counts of calls
	if figures.Requests > 0 {
		e.AverageProcessingTime = figures.Took / time.Duration(figures.Requests) //nolint:gosec // as above
	}
	if figures.Data != nil {
		e.Data, _ = json.Marshal(figures.Data) // figures are shown without it
	}
	return all
}

var (
	semver      = regexp.MustCompile(`^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)
	serviceName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	notBuild    = regexp.MustCompile(`[^0-9A-Za-z]+`)
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

// Stop takes the process off the list. It may be called more than once.
func (s *Service) Stop() {
	for _, sub := range s.subs {
		_ = sub.Unsubscribe() // fails for a connection that is closed
	}
}
