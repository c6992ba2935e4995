package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// Errors of keys; the methods wrap them.
var (
	// ErrConflict: a key has another revision than the one that was expected, or
	// exists where it was to be created. Nothing was written.
	ErrConflict = errors.New("the key was changed in between")
	// ErrNoKey: a bucket holds no such key, or only the mark of its end.
	ErrNoKey = errors.New("no such key")
	// ErrDeleted: the key was deleted in the last minute. It is an ErrNoKey, too.
	ErrDeleted = fmt.Errorf("it was deleted: %w", ErrNoKey)
)

// Key names one value of a bucket.
type Key struct{ Bucket, Name string }

func (k Key) String() string { return k.Bucket + "/" + k.Name }

// Entry is one value of a bucket.
type Entry struct {
	Value []byte
	// Revision is the value's sequence in the bucket's stream.
	Revision uint64
	// Time is when it was written, by the broker's clock.
	Time time.Time
}

const (
	headerKVOperation = "KV-Operation"
	operationPurge    = "PURGE"
)

// Gone reports whether a message of a bucket says that its key is gone: deleted,
// or expired.
func Gone(h nats.Header) bool {
	return h.Get(headerKVOperation) != "" || h.Get(jetstream.MarkerReasonHeader) != ""
}

// Get returns a key's value, from any replica: it may be a moment old. A missing
// key is [ErrNoKey].
func (st Store) Get(ctx context.Context, key Key) (Entry, error) {
	m, err := st.lastOf(ctx, key)
	if err != nil {
		return Entry{}, err
	}
	return entry(key, m)
}

// Latest is [Store.Get] from the bucket's leader, which has all acknowledged writes. It costs a
// request to JetStream's API, which no other replica answers.
func (st Store) Latest(ctx context.Context, key Key) (Entry, error) {
	m, err := st.latest(ctx, subjects.KVStream(key.Bucket), subjects.KVSubject(key.Bucket, key.Name))
	if err != nil {
		return Entry{}, apiError("get "+key.String(), err)
	}
	return entry(key, m)
}

// entry is the value in the last message of a key; nil without one.
func entry(key Key, m *Stored) (Entry, error) {
	switch {
	case m == nil, m.Header.Get(jetstream.MarkerReasonHeader) != "":
		return Entry{}, fmt.Errorf("%s: %w", key, ErrNoKey)
	case Gone(m.Header):
		return Entry{}, fmt.Errorf("%s: %w", key, ErrDeleted)
	}
	return Entry{Value: m.Data, Revision: m.Seq, Time: m.Time}, nil
}

// latest returns the last message of a subject from a stream's leader; nil without one. Its
// errors are JetStream's.
func (st Store) latest(ctx context.Context, stream, subject string) (*Stored, error) {
	body, _ := json.Marshal(map[string]string{"last_by_subj": subject})
	m, err := st.Request(ctx, &nats.Msg{Subject: st.API() + "STREAM.MSG.GET." + stream, Data: body})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Seq    uint64    `json:"seq"`
			Header []byte    `json:"hdrs"`
			Data   []byte    `json:"data"`
			Time   time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return nil, fmt.Errorf("answer of stream %s: %w", stream, err)
	}
	switch e := answer.Error; {
	case e != nil && e.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil //nolint:nilnil // nothing is there
	case e != nil:
		return nil, e
	}
	s := &Stored{Subject: subject, Seq: answer.Message.Seq, Time: answer.Message.Time, Data: answer.Message.Data}
	if len(answer.Message.Header) > 0 {
		if s.Header, err = nats.DecodeHeadersMsg(answer.Message.Header); err != nil {
			return nil, fmt.Errorf("headers of stream %s: %w", stream, err)
		}
	}
	return s, nil
}

// lastOf returns the last message of a key from any replica, also one that marks its end; nil without
// one.
func (st Store) lastOf(ctx context.Context, key Key) (*Stored, error) {
	found, err := st.Find(ctx, subjects.KVStream(key.Bucket), Lookup{Subject: subjects.KVSubject(key.Bucket, key.Name)})
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	return found[0], nil
}

// Put writes a key unconditionally and returns its revision. With a ttl above 0 the key expires;
// the ttl is at least 1 s, in whole seconds.
func (st Store) Put(ctx context.Context, key Key, value []byte, ttl time.Duration) (revision uint64, err error) {
	return st.publishKey(ctx, key, value, ttl, nil, "")
}

// Create writes a key that does not exist, or was deleted, or has expired. A key that exists is
// [ErrConflict].
func (st Store) Create(ctx context.Context, key Key, value []byte, ttl time.Duration) (revision uint64, err error) {
	var zero uint64
	revision, err = st.publishKey(ctx, key, value, ttl, &zero, "")
	if !errors.Is(err, ErrConflict) {
		return revision, err
	}
	// The key may be the marker of one that has ended.
	last, lookErr := st.lastOf(ctx, key)
	if lookErr != nil || last == nil || !Gone(last.Header) {
		return 0, err
	}
	return st.publishKey(ctx, key, value, ttl, &last.Seq, "")
}

// Update writes a key that must still have the given revision, else it is
// [ErrConflict]. A ttl holds for this value only: each renewal gives it again.
// An acknowledgement that is lost makes a repetition conflict with itself.
func (st Store) Update(ctx context.Context, key Key, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	return st.publishKey(ctx, key, value, ttl, &revision, "")
}

// Delete ends a key. revision above 0 is the one that it must still have, else
// it is [ErrConflict]. The mark of its end is kept for a minute and reaches
// the followers of the bucket.
func (st Store) Delete(ctx context.Context, key Key, revision uint64) error {
	var expect *uint64
	if revision > 0 {
		expect = &revision
	}
	ttl := markerTTL
	if key.Bucket == subjects.BucketTaskState {
		ttl = taskMarkerTTL
	}
	_, err := st.publishKey(ctx, key, nil, ttl, expect, operationPurge)
	return err
}

func (st Store) publishKey(ctx context.Context, key Key, value []byte, ttl time.Duration, expect *uint64, operation string) (uint64, error) {
	m := nats.NewMsg(subjects.KVSubject(key.Bucket, key.Name))
	m.Data = value
	if operation != "" {
		m.Header.Set(headerKVOperation, operation)
	}
	opts := []jetstream.PublishOpt{jetstream.WithExpectStream(subjects.KVStream(key.Bucket))}
	if ttl > 0 {
		opts = append(opts, jetstream.WithMsgTTL(max(ttl.Round(time.Second), time.Second)))
	}
	if expect != nil {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(*expect))
	}
	revision, err := st.publish(ctx, m, "write "+key.String(), opts...)
	if errors.Is(err, ErrFull) {
		return 0, toolmesh.Errorf(toolmesh.CodeUnavailable, "%w", err).WithOrigin(toolmesh.OriginMesh)
	}
	return revision, err
}

var errNotSent = errors.New("nothing was sent")

// Refused reports whether the error of a write proves that nothing was written, or will be: it
// was not sent, had no subscriber, or found no room.
func Refused(err error) bool {
	return errors.Is(err, ErrFull) || errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, errNotSent)
}

// IsUnavailable reports whether the broker or its JetStream did not answer, so that the same
// request may succeed later.
func IsUnavailable(err error) bool {
	code := toolmesh.CodeOf(err)
	return code == toolmesh.CodeUnavailable || code == toolmesh.CodeDeadlineExceeded
}
