package natsadmin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jsm.go"
	"github.com/nats-io/jsm.go/api"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// Level says how bad a [Finding] is.
type Level string

// The levels of a finding.
const (
	LevelOK      Level = "ok"
	LevelWarning Level = "warning"
	LevelError   Level = "error"
)

// Finding is one line of a check.
type Finding struct {
	Level Level `json:"level"`
	// Subject is what it is about: a stream, or jetstream.
	Subject string `json:"subject"`
	Text    string `json:"text"`
	// Fix says what to do about it; empty for what is ok.
	Fix string `json:"fix,omitempty"`
}

// CheckOptions adjusts [Check].
type CheckOptions struct {
	// Domain is the JetStream domain. Defaults to the connection's own.
	Domain string
	// Layout is what the mesh was told to make. Defaults to its defaults.
	Layout bus.Layout
}

const (
	// apiTimeout is how long one question may take if ctx has no deadline.
	apiTimeout = 5 * time.Second
	// nearlyFull is the share of a stream's bytes from which it is a warning.
	nearlyFull = 0.8
	slowReply  = 5 * time.Second
)

// Check looks at the mesh's streams and buckets and at foreign streams that store
// its requests, and returns a finding for each, what is ok included. It changes
// nothing. An error means that JetStream could not be asked.
func Check(ctx context.Context, nc *nats.Conn, options *CheckOptions) ([]Finding, error) {
	var o CheckOptions
	if options != nil {
		o = *options
	}
	timeout := apiTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	opts := []jsm.Option{jsm.WithTimeout(timeout)}
	if o.Domain != "" {
		opts = append(opts, jsm.WithDomain(o.Domain))
	}
	manager, err := jsm.New(nc, opts...)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "check JetStream: %w", err)
	}
	streams, missing, offline, err := manager.Streams(nil)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable,
			"JetStream does not answer: %w; enable it on the broker (nats-server -js) and for the account", err).WithOrigin(toolmesh.OriginMesh)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("check JetStream: %w", err)
	}
	var found []Finding
	have := make(map[string]*api.StreamInfo, len(streams))
	for _, s := range streams {
		info, err := s.LatestInformation()
		if err != nil {
			return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "check stream %s: %w", s.Name(), err).WithOrigin(toolmesh.OriginMesh)
		}
		have[s.Name()] = info
	}
	for _, want := range o.Layout.Streams() {
		switch info := have[want.Name]; {
		case info != nil:
			found = append(found, checkStream(info, want, o.Layout)...)
		case offline[want.Name] != "":
			found = append(found, Finding{LevelError, want.Name, "is offline: " + offline[want.Name], "upgrade the brokers to one version"})
		case slices.Contains(missing, want.Name):
			found = append(found, Finding{LevelError, want.Name, "does not answer", "start the brokers that hold it"})
		default:
			found = append(found, Finding{LevelError, want.Name, "is not there", "start a node: the first one makes it"})
		}
	}
	return append(found, checkForeign(streams)...), nil
}

func checkStream(info *api.StreamInfo, want jetstream.StreamConfig, layout bus.Layout) []Finding {
	c := &info.Config
	var found []Finding
	add := func(level Level, fix, format string, args ...any) {
		found = append(found, Finding{level, want.Name, fmt.Sprintf(format, args...), fix})
	}
	const repair = "restart a node: it corrects it"
	const remove = "delete it: the mesh makes it anew"
	if !slices.Equal(slices.Sorted(slices.Values(c.Subjects)), slices.Sorted(slices.Values(want.Subjects))) {
		add(LevelError, remove, "stores %s, not %s", strings.Join(c.Subjects, ", "), strings.Join(want.Subjects, ", "))
	}
	if r := c.RePublish; r == nil || r.Source != want.RePublish.Source || r.Destination != want.RePublish.Destination {
		add(LevelError, repair, "does not republish to %s: live chunks and changes of the registry do not arrive", want.RePublish.Destination)
	}
	if !c.AllowDirect {
		add(LevelError, repair, "does not allow direct reads")
	}
	if want.AllowMsgTTL && !c.AllowMsgTTL {
		add(LevelError, repair, "does not allow keys to expire: leases would live for ever")
	}
	if c.NoAck {
		add(LevelError, remove, "does not acknowledge")
	}
	if layout.Copies > 0 && c.Replicas != layout.Copies {
		add(LevelWarning, repair, "has %d copies, the settings ask for %d", c.Replicas, layout.Copies)
	}
	if want.Name == subjects.StreamChunks && c.Storage == api.MemoryStorage {
		add(LevelWarning, "set MESH_CHUNKS_STORAGE=file and delete it, if streams must survive a restart of the broker",
			"is kept in memory: streams cannot be resumed after a restart of the broker")
	}
	if cluster := info.Cluster; cluster != nil && cluster.Name != "" {
		if cluster.Leader == "" {
			add(LevelError, "start the brokers that hold it", "has no leader")
		}
		for _, peer := range cluster.Replicas {
			if peer.Offline {
				add(LevelWarning, "start the broker "+peer.Name, "its copy on %s is offline", peer.Name)
			} else if !peer.Current && peer.Active > slowReply {
				add(LevelWarning, "look at the broker "+peer.Name, "its copy on %s is behind", peer.Name)
			}
		}
		if c.Replicas < 3 {
			add(LevelWarning, "set MESH_REPLICAS=3 where the cluster has three brokers",
				"has %d of at most 3 copies: it is away while a broker is", c.Replicas)
		}
	}
	if c.MaxBytes > 0 && float64(info.State.Bytes) > nearlyFull*float64(c.MaxBytes) {
		add(LevelWarning, "raise MESH_CHUNKS_MAX", "is %d %% full: when it is full, streams are refused", info.State.Bytes*100/uint64(c.MaxBytes))
	}
	if len(found) == 0 {
		add(LevelOK, "", "%d messages, %d bytes", info.State.Msgs, info.State.Bytes)
	}
	return found
}

// checkForeign names the streams that store requests of the mesh.
func checkForeign(streams []*jsm.Stream) []Finding {
	var found []Finding
	for _, s := range streams {
		if s.Name() == subjects.StreamChunks {
			continue
		}
		if covered := bus.CoveredRequests(s.Subjects()); len(covered) > 0 {
			found = append(found, Finding{
				LevelError, s.Name(),
				fmt.Sprintf("stores requests of the mesh (%s): its acknowledgements would pass for replies", strings.Join(s.Subjects(), ", ")),
				"delete it or change its subjects",
			})
		}
	}
	return found
}
