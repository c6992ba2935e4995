package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// chunksAge is how long the chunks of a stream are kept.
	chunksAge = 15 * time.Minute
	// DefaultChunksBytes is the default bound for all of them together.
	DefaultChunksBytes int64 = 1e9
	// markerTTL is the lifetime of the marker of a key that was removed. In the bucket of tasks a
	// marker takes the room of a task, and no process follows it.
	markerTTL     = time.Minute
	taskMarkerTTL = 2 * time.Second
	// apiTimeout is how long one question to JetStream may take, retryTimeout how
	// long it is asked again while it has no leader, when the caller set no limit.
	apiTimeout   = 5 * time.Second
	retryTimeout = 30 * time.Second
	mostCopies   = 3
)

// Numbers of JetStream's API errors that nats.go has no name for.
const (
	errNoSuitablePeers  = 10005
	errTemporarilyGone  = 10008
	errStorageExceeded  = 10047
	errMemoryExceeded   = 10028
	errNotClustered     = 10074
	errStreamStorage    = 10052 // update refused
	errClusterNotReady  = 10009
	errStreamOverlap    = 10065
	errMaxStreamsForAcc = 10027
	errStreamOffline    = 10118
)

// Layout configures the mesh's streams and buckets. A zero field leaves the storage, size and
// copies of an existing one as they are.
type Layout struct {
	// Replicas is the number of replicas of each stream. Defaults to 3 where the
	// broker is a cluster that can place them, else 1: two are lost with either.
	Replicas int
	// ChunksStorage is "file" or "memory" for MESH_CHUNKS. Defaults to file for a
	// new one. Memory, or one copy, gives up resuming over a broker's restart.
	ChunksStorage string
	// ChunksMax bounds MESH_CHUNKS. Defaults to [DefaultChunksBytes] for a new one.
	ChunksMax int64
	// PayloadsMax bounds the object store of payloads. Defaults to
	// [DefaultPayloadsBytes] for a new one.
	PayloadsMax int64
	// Audit has the mesh keep the events of its calls, in MESH_AUDIT. Defaults to false.
	Audit bool
}

// Validate returns invalid_request for a field that is out of range, and names it as one of
// the given options.
func (l Layout) Validate(of string) error {
	bad := func(format string, args ...any) error {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, of+"."+format, args...).WithOrigin(toolmesh.OriginCaller)
	}
	switch {
	case l.Replicas < 0 || l.Replicas > 5:
		return bad("Replicas is %d: 1 to 5, or 0 for as many as the cluster allows", l.Replicas)
	case l.ChunksStorage != "" && l.ChunksStorage != "file" && l.ChunksStorage != "memory":
		return bad("ChunksStorage is %q: file or memory", l.ChunksStorage)
	case l.ChunksMax < 0:
		return bad("ChunksMax is %d: at least 0 bytes", l.ChunksMax)
	case l.PayloadsMax < 0:
		return bad("PayloadsMax is %d: at least 0 bytes", l.PayloadsMax)
	}
	return nil
}

// Streams returns the configurations that the layout asks for, the buckets'
// streams included, the object stores not. Replicas is 0 where the layout leaves it
// to the broker's cluster.
func (l Layout) Streams() []jetstream.StreamConfig {
	chunks := l.stream(subjects.StreamChunks, "Chunks of streaming calls", subjects.AllChunks)
	chunks.MaxAge, chunks.MaxBytes = chunksAge, cmp.Or(l.ChunksMax, DefaultChunksBytes)
	chunks.RePublish = &jetstream.RePublish{Source: subjects.ChunksTransform, Destination: subjects.LiveTransform}
	if l.ChunksStorage == "memory" {
		chunks.Storage = jetstream.MemoryStorage
	}
	all := []jetstream.StreamConfig{chunks}
	for _, bucket := range subjects.RegistryBuckets() {
		all = append(all, l.bucket(bucket))
	}
	if l.Audit { // the latest ones
		audit := l.stream(subjects.StreamAudit, "Calls that ended", subjects.AllCallEvents)
		audit.Discard, audit.MaxBytes, audit.MaxMsgsPerSubject = jetstream.DiscardOld, auditBytes, auditShare
		all = append(all, audit)
	}
	// These two are followed by no process.
	keys, lanes := l.bucket(subjects.BucketIdem), l.bucket(subjects.BucketLanes)
	keys.Description, keys.RePublish, keys.MaxAge, keys.MaxBytes = "Idempotency keys of calls", nil, keysAge, keysBytes
	lanes.Description, lanes.RePublish, lanes.MaxAge = "Owners of lanes", nil, lanesAge
	tasks := l.bucket(subjects.BucketTaskState)
	tasks.Description, tasks.MaxBytes = "Durable tasks", DefaultTasksBytes
	queue := l.stream(subjects.StreamTasks, "Durable tasks that are to run", subjects.AllTasks)
	queue.Retention, queue.MaxBytes = jetstream.WorkQueuePolicy, queuedBytes
	return append(all, keys, lanes, tasks, queue)
}

const (
	// auditBytes bounds the events of all sessions' calls, auditShare the number of one session.
	auditBytes = 256e6
	auditShare = 50_000
	// keysAge is how long an idempotency key is known, keysBytes bounds all of them together.
	keysAge   = 24 * time.Hour
	keysBytes = 256e6
	// lanesAge is how long the record of a lane's owner is kept after the owner has died.
	lanesAge = 24 * time.Hour
	// DefaultTasksBytes bounds the records of tasks with their arguments and results in a new
	// bucket, queuedBytes the queue.
	DefaultTasksBytes int64 = 512e6
	queuedBytes       int64 = 128e6
	// dueKept is how many due times of one schedule wait.
	dueKept = 100
)

// stream is the common configuration: files that keep all messages and refuse new ones when full.
func (l Layout) stream(name, description string, stored ...string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Description: description, Subjects: stored, Discard: jetstream.DiscardNew, Replicas: l.Replicas, AllowDirect: true,
		MaxBytes: -1, MaxMsgs: -1, MaxMsgsPerSubject: -1, MaxConsumers: -1, MaxMsgSize: -1,
	}
}

// EnsureSchedules is [Store.Ensure] for the stream of tasks with a time. It returns false if the
// broker does not support it. JetStream allows schedules only in a stream that may discard old
// messages: the bound on the number of tasks keeps it from that.
func (st Store) EnsureSchedules(ctx context.Context, copies int) (bool, error) {
	if !atLeast(st.Conn().ConnectedServerVersion(), 2, 14) {
		return false, nil
	}
	l := Layout{Replicas: copies}
	config := l.stream(subjects.StreamSchedules, "Durable tasks that have a time", subjects.AllSchedules)
	config.Retention, config.Discard, config.MaxMsgsPerSubject = jetstream.WorkQueuePolicy, jetstream.DiscardOld, dueKept
	config.AllowMsgSchedules, config.AllowRollup, config.AllowMsgTTL = true, true, true
	return true, st.ensureStream(ctx, config, l)
}

// atLeast reports whether a NATS server's version is a given one or later.
func atLeast(version string, major, minor int) bool {
	var have [2]int
	if _, err := fmt.Sscanf(version, "%d.%d", &have[0], &have[1]); err != nil {
		return false
	}
	return have[0] > major || have[0] == major && have[1] >= minor
}

func (l Layout) bucket(bucket string) jetstream.StreamConfig {
	config := l.stream(subjects.KVStream(bucket), "Registry of the mesh", subjects.KVAll(bucket))
	// Rollups stay off: one publish with a rollup header would empty the bucket.
	config.MaxMsgsPerSubject, config.DenyDelete, config.AllowMsgTTL = 1, true, true
	config.RePublish = &jetstream.RePublish{Source: subjects.KVAll(bucket), Destination: subjects.RegistryChanges(bucket)}
	if bucket == subjects.BucketNodes || bucket == subjects.BucketSessions {
		// Their keys expire by themselves, and followers of the bucket have to
		// hear of it. The server turns rollups on with it.
		config.SubjectDeleteMarkerTTL, config.AllowRollup = markerTTL, true
	}
	return config
}

// objects are the streams of the object stores, as nats.go makes them.
func (l Layout) objects() []jetstream.StreamConfig {
	payloads := l.objectStore(subjects.ObjectPayloads, "Values that are too large for a message")
	tasks := l.objectStore(subjects.ObjectTasks, "Large arguments and results of durable tasks")
	tasks.MaxBytes = DefaultTasksBytes
	payloads.MaxAge, payloads.MaxBytes = payloadsAge, cmp.Or(l.PayloadsMax, DefaultPayloadsBytes)
	return []jetstream.StreamConfig{l.objectStore(subjects.ObjectBundles, "Bundles of indexes by digest"), payloads, tasks}
}

func (l Layout) objectStore(bucket, description string) jetstream.StreamConfig {
	config := l.stream(subjects.ObjectStream(bucket), description, subjects.ObjectParts(bucket)+">", subjects.ObjectMetas(bucket)+">")
	config.AllowRollup, config.MaxBytes = true, 0 // a bound that an operator has set stays
	return config
}

// Ensure refuses foreign streams that cover the mesh's requests, makes the missing streams, buckets
// and object stores, and compares existing ones with the layout: it applies changes that lose no
// data; for others the error says what to do. While JetStream has no leader it retries until ctx
// ends, or for 30 s if ctx has no deadline. nil is the zero Layout.
func (st Store) Ensure(ctx context.Context, layout *Layout) error {
	return st.lay(ctx, layout, st.ensureStream)
}

// Restore makes what is missing, as [Store.Ensure] does, and leaves the rest as it is: another
// process may have changed it since.
func (st Store) Restore(ctx context.Context, layout *Layout) error {
	return st.lay(ctx, layout, func(ctx context.Context, want jetstream.StreamConfig, l Layout) error {
		_, err := st.JetStream().Stream(ctx, want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return st.ensureStream(ctx, want, l)
		}
		return err //nolint:wrapcheck // the next renewal asks again
	})
}

func (st Store) lay(ctx context.Context, layout *Layout, each func(context.Context, jetstream.StreamConfig, Layout) error) error {
	l := *cmp.Or(layout, &Layout{})
	if err := l.Validate("Layout"); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := st.refuseForeign(ctx); err != nil {
		return err
	}
	for _, want := range append(l.Streams(), l.objects()...) {
		if err := each(ctx, want, l); err != nil {
			return err
		}
	}
	return nil
}

// EnsureBucket makes a bucket with republished changes, or compares an existing one with that.
func (st Store) EnsureBucket(ctx context.Context, bucket string) error {
	return st.ensureStream(ctx, Layout{}.bucket(bucket), Layout{})
}

// bounded gives a context without a deadline one.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, retryTimeout)
}

// refuseForeign fails if other streams of this account cover subjects on which the mesh answers.
// JetStream acknowledges each message to its reply subject: that races the reply of the mesh, and
// hides that no node serves the subject.
func (st Store) refuseForeign(ctx context.Context) error {
	requests := []string{
		subjects.AllTools, subjects.AllCtl, subjects.AllRegistry, subjects.AllReplay, subjects.AllAdmin, subjects.AllPayloads, subjects.AllTaskVerbs, subjects.AllBatches,
	}
	if one, err := subjects.NodeTools("node"); err == nil { // it stands for all nodes
		requests = append(requests, one)
	}
	var foreign []string
	err := st.retry(ctx, "list the streams", func(ctx context.Context) error {
		foreign = nil
		list := st.JetStream().ListStreams(ctx)
		for info := range list.Info() {
			stored := info.Config.Subjects
			if info.Config.Name != subjects.StreamChunks && slices.ContainsFunc(stored, func(s string) bool {
				return slices.ContainsFunc(requests, func(r string) bool { return subjects.Overlap(s, r) })
			}) {
				foreign = append(foreign, fmt.Sprintf("%s (%s)", info.Config.Name, strings.Join(stored, ", ")))
			}
		}
		return list.Err()
	})
	if err != nil || len(foreign) == 0 {
		return err
	}
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest,
		"streams that are not the mesh's store its requests, and their acknowledgements would pass for replies: %s; delete them or change their subjects",
		strings.Join(foreign, "; ")).WithOrigin(toolmesh.OriginMesh).WithDetail("streams", foreign)
}

func (st Store) ensureStream(ctx context.Context, want jetstream.StreamConfig, l Layout) error {
	return st.retry(ctx, "stream "+want.Name, func(ctx context.Context) error {
		stream, err := st.JetStream().Stream(ctx, want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			if err = st.createStream(ctx, want); err == nil {
				st.Logger().Info("stream made", slog.String("stream", want.Name))
				return nil
			}
			if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
				return err
			}
			// Another process made the stream first: compare it.
			stream, err = st.JetStream().Stream(ctx, want.Name)
		}
		if err != nil {
			return err
		}
		have := stream.CachedInfo().Config
		merged, err := merge(have, want, l)
		if err != nil || reflect.DeepEqual(merged, have) {
			return err
		}
		update := subjects.Rights{Publish: []string{st.API() + "STREAM.UPDATE." + want.Name}}
		if err := st.CheckRights(ctx, "change the stream "+want.Name+": it needs the key of an administrator", update); err != nil {
			return err
		}
		if _, err := st.JetStream().UpdateStream(ctx, merged); err != nil {
			return err
		}
		st.Logger().Info("stream changed", slog.String("stream", want.Name))
		return nil
	})
}

// createStream tries the most copies that the cluster can place.
func (st Store) createStream(ctx context.Context, want jetstream.StreamConfig) error {
	if want.Replicas > 0 {
		_, err := st.JetStream().CreateStream(ctx, want)
		return err
	}
	want.Replicas = 1
	if st.Conn().ConnectedClusterName() != "" {
		want.Replicas = mostCopies
	}
	_, err := st.JetStream().CreateStream(ctx, want)
	if want.Replicas > 1 && isAPIError(err, errNoSuitablePeers, errNotClustered) {
		want.Replicas = 1
		_, err = st.JetStream().CreateStream(ctx, want)
	}
	return err
}

// merge returns have with the changes of want. The error names a change that would lose data.
func merge(have, want jetstream.StreamConfig, l Layout) (jetstream.StreamConfig, error) {
	refuse := func(format string, args ...any) (jetstream.StreamConfig, error) {
		return have, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "stream %s "+format, append([]any{want.Name}, args...)...).
			WithOrigin(toolmesh.OriginMesh)
	}
	switch {
	case !slices.Equal(slices.Sorted(slices.Values(have.Subjects)), slices.Sorted(slices.Values(want.Subjects))):
		return refuse("stores %v, not %v: it is not the mesh's; delete it or use another account", have.Subjects, want.Subjects)
	case have.Retention != want.Retention, have.Mirror != nil, len(have.Sources) > 0, have.SubjectTransform != nil, have.Sealed, have.NoAck:
		return refuse("is of another kind than the mesh's (%v): delete it, the mesh makes it anew", have.Retention)
	case l.ChunksStorage != "" && want.Name == subjects.StreamChunks && have.Storage != want.Storage:
		return refuse("is kept in %v, the settings ask for %v: delete it or change the setting", have.Storage, want.Storage)
	}
	merged := have
	merged.RePublish, merged.AllowDirect, merged.AllowRollup = want.RePublish, want.AllowDirect, want.AllowRollup
	merged.Discard, merged.DiscardNewPerSubject = want.Discard, false
	merged.MaxMsgs, merged.MaxMsgsPerSubject, merged.MaxMsgSize = want.MaxMsgs, want.MaxMsgsPerSubject, want.MaxMsgSize
	if merged.MaxAge = want.MaxAge; merged.MaxAge > 0 {
		merged.Duplicates = min(merged.Duplicates, merged.MaxAge)
	}
	merged.AllowMsgTTL = have.AllowMsgTTL || want.AllowMsgTTL // cannot be turned off again
	merged.SubjectDeleteMarkerTTL = want.SubjectDeleteMarkerTTL
	if want.Name == subjects.StreamChunks && l.ChunksMax > 0 || want.Name == payloadStream && l.PayloadsMax > 0 || want.MaxBytes < 0 {
		merged.MaxBytes = want.MaxBytes
	}
	if l.Replicas > 0 {
		merged.Replicas = l.Replicas
	}
	return merged, nil
}

// retry repeats do while JetStream has no leader or does not answer, until ctx ends, or for 30 s if
// ctx has no deadline, and converts the last error.
func (st Store) retry(ctx context.Context, what string, do func(ctx context.Context) error) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	pause := 50 * time.Millisecond
	var said error // by the attempt before
	for {
		attempt, cancel := context.WithTimeout(ctx, apiTimeout)
		err := do(attempt)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil && said != nil {
			return apiError(what, said) // this one was cut short: it has learnt nothing
		}
		said = err
		if !notReady(err) {
			return apiError(what, err)
		}
		select {
		case <-ctx.Done():
			return apiError(what, err)
		case <-st.Closed():
			return bus.ErrClosed()
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}

// notReady reports whether the same question may be answered a moment later.
func notReady(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrReconnectBufExceeded) ||
		errors.Is(err, nats.ErrDisconnected) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, errIncomplete) ||
		isAPIError(err, errTemporarilyGone, errClusterNotReady, errStreamOffline)
}

func isAPIError(err error, numbers ...jetstream.ErrorCode) bool {
	e, ok := errors.AsType[*jetstream.APIError](err)
	if wrapped, other := errors.AsType[jetstream.JetStreamError](err); !ok && other {
		e = wrapped.APIError()
	}
	return e != nil && slices.Contains(numbers, e.ErrorCode)
}

// apiError converts an error of JetStream, with advice.
func apiError(what string, err error) error {
	if _, own := errors.AsType[*toolmesh.Error](err); own {
		return err
	}
	code, hint, again := toolmesh.CodeUnavailable, "try again", true
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		hint = "enable JetStream for the account"
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrNoResponders):
		hint = "JetStream does not answer: enable it on the broker (nats-server -js), or wait for its cluster"
	case errors.Is(err, jetstream.ErrAsyncPublishTimeout), errors.Is(err, context.DeadlineExceeded):
		hint = "the NATS server did not answer in time: the stream has no leader, or the disk may be full"
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return bus.ErrClosed()
	case isAPIError(err, errStorageExceeded, errMemoryExceeded, errMaxStreamsForAcc):
		// A retry makes no room, and would keep the error from the caller.
		hint, again = "the broker has no room for it: give JetStream more, or ask for less (MESH_CHUNKS_MAX, MESH_PAYLOADS_MAX)", false
	case isAPIError(err, errNoSuitablePeers, errNotClustered):
		// Servers of a cluster come back, one server does not become a cluster.
		again = isAPIError(err, errNoSuitablePeers)
		hint = "the broker's cluster cannot place that many copies: ask for fewer (MESH_REPLICAS)"
	case isAPIError(err, errStreamOverlap):
		code, hint = toolmesh.CodeInvalidRequest, "another stream stores the mesh's subjects: delete it or change its subjects"
	case isAPIError(err, errStreamStorage):
		code, hint = toolmesh.CodeInvalidRequest, "delete it, the mesh makes it anew"
	}
	e := toolmesh.Errorf(code, "%s: %w; %s", what, err, hint).WithOrigin(toolmesh.OriginMesh)
	return e.WithRetryable(e.Retryable && again)
}
