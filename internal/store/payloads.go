package store

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// payloadsAge is how long a payload is kept that is not deleted.
	payloadsAge = 15 * time.Minute
	// DefaultPayloadsBytes bounds all payloads together in a new store.
	DefaultPayloadsBytes int64 = 2e9

	// pieceBytes is the max size of a stored part; pieceRoom is the rest of its message.
	pieceBytes = 256 << 10
	pieceRoom  = 4 << 10

	// readBytes is the size of one request to the store.
	readBytes = 2 << 20

	// payloadSilence is how long the store may take for its next answer.
	payloadSilence = 15 * time.Second
)

// Object is a payload or a bundle in the mesh's store, in the form of the NATS clients (ADR-20): a
// description, beside the parts under an id of their own.
type Object struct {
	Name   string
	Digest string // of the content: SHA-256=<base64url>
	Size   int64
	Stored time.Time // when it was stored or renewed, by the broker's clock

	info     jetstream.ObjectInfo
	revision uint64 // of the description
}

// Parts is the number of its messages.
func (o *Object) Parts() int { return int(o.info.Chunks) } //nolint:gosec // fewer than 2^31

func payloadParts(nuid string) string { return subjects.ObjectParts(subjects.ObjectPayloads) + nuid }

var payloadStream = subjects.ObjectStream(subjects.ObjectPayloads)

// PieceBytes is the max size of a piece, which one message carries.
func (st Store) PieceBytes() int {
	limit := st.MaxPayload()
	if limit == 0 || limit > pieceBytes+pieceRoom {
		return pieceBytes
	}
	return int(max(limit-pieceRoom, limit/2))
}

// Payload returns a payload, or [ErrNoKey]; see [Store.find].
func (st Store) Payload(ctx context.Context, name string) (Object, error) {
	return st.find(ctx, subjects.ObjectPayloads, name)
}

// ReadPayload calls each with the parts of a payload in order, from the stored sequence
// from on, 0 for the first, until each returns false, and returns the sequence of the
// last one. left is the number of parts from there on, which are waited for as in
// [Store.readParts]; parts that were deleted are unavailable. The caller checks the digest.
func (st Store) ReadPayload(ctx context.Context, p Object, from uint64, left int, each func(part *Stored) (more bool, err error)) (last uint64, err error) {
	q := Query{Stream: payloadStream, Subject: payloadParts(p.info.NUID), From: from, Bytes: readBytes}
	return st.readParts(ctx, "read payload "+p.Name, q, left, each)
}

// CopyPayload writes a payload to w and returns the digest of that. A payload of more bytes than it
// is said to have ends there.
func (st Store) CopyPayload(ctx context.Context, p Object, w io.Writer) (digest string, err error) {
	return st.copy(ctx, subjects.ObjectPayloads, p, w)
}

// copy is CopyPayload for an object of any bucket.
func (st Store) copy(ctx context.Context, bucket string, o Object, w io.Writer) (digest string, err error) {
	sum, left := sha256.New(), o.Size
	q := Query{Stream: subjects.ObjectStream(bucket), Subject: subjects.ObjectParts(bucket) + o.info.NUID, Bytes: readBytes}
	_, err = st.readParts(ctx, "read object "+bucket+"/"+o.Name, q, o.Parts(), func(part *Stored) (bool, error) {
		if left -= int64(len(part.Data)); left < 0 {
			return false, nil
		}
		sum.Write(part.Data)
		_, err := w.Write(part.Data)
		return true, err
	})
	return codec.DigestText(sum.Sum(nil)), err
}

func objectSubject(bucket, name string) string {
	return subjects.ObjectMetas(bucket) + base64.URLEncoding.EncodeToString([]byte(name))
}

// find reads the description of an object, or returns [ErrNoKey]. Any replica answers; the
// leader is asked about an object that the replica does not know.
func (st Store) find(ctx context.Context, bucket, name string) (o Object, err error) {
	what, stream, subject := "object "+bucket+"/"+name, subjects.ObjectStream(bucket), objectSubject(bucket, name)
	known := false
	err = st.retry(ctx, "find "+what, func(ctx context.Context) error {
		found, err := st.Find(ctx, stream, Lookup{Subject: subject})
		if err != nil && !errors.Is(err, nats.ErrNoResponders) {
			return err
		}
		if err == nil {
			o, known = readObject(found[0])
		}
		if !known || o.info.Deleted {
			m, err := st.latest(ctx, stream, subject)
			o, known = readObject(m)
			return err
		}
		return nil
	})
	if err == nil && (!known || o.info.Deleted || o.info.Name != name) {
		err = fmt.Errorf("%s: %w", what, ErrNoKey)
	}
	return o, err
}

// readObject reads a description; ok is false without one.
func readObject(m *Stored) (o Object, ok bool) {
	if m == nil || json.Unmarshal(m.Data, &o.info) != nil || o.info.NUID == "" {
		return Object{}, false
	}
	return Object{o.info.Name, o.info.Digest, int64(o.info.Size), m.Time, o.info, m.Seq}, true //nolint:gosec // fewer than 2^63
}

// describe writes the description of an object in place of the one that was read, or a first one.
func (st Store) describe(ctx context.Context, bucket string, o Object) (revision uint64, err error) {
	o.info.ModTime = time.Time{} // only the broker's time of the message counts
	data, err := json.Marshal(o.info)
	if err != nil {
		return 0, fmt.Errorf("describe object %s/%s: %w", bucket, o.Name, err)
	}
	m := nats.NewMsg(objectSubject(bucket, o.Name))
	m.Data = data
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	return st.publish(ctx, m, "describe object "+bucket+"/"+o.Name, jetstream.WithExpectStream(subjects.ObjectStream(bucket)), jetstream.WithExpectLastSequencePerSubject(o.revision))
}

// errIncomplete is the error of a replica that lags, or of a store that has lost messages.
var errIncomplete = errors.New("parts are missing")

// readParts reads the parts of an object. It waits up to retryTimeout for each part that a
// lagging replica does not have yet.
func (st Store) readParts(ctx context.Context, what string, q Query, left int, each func(part *Stored) (more bool, err error)) (last uint64, err error) {
	stopped := false
	for left > 0 && !stopped {
		waiting, cancel := context.WithTimeout(ctx, retryTimeout)
		err := st.retry(waiting, what, func(ctx context.Context) error {
			before := left
			for m, err := range st.Read(ctx, q) {
				if err != nil {
					if left < before {
						break // the next request continues behind the messages received
					}
					return err
				}
				more, err := each(m)
				if err != nil {
					return err
				}
				last, q.From = m.Seq, m.Seq+1
				if left--; !more {
					stopped = true
					return nil
				}
			}
			if left == before {
				return errIncomplete
			}
			return nil
		})
		cancel()
		if err != nil {
			return last, err
		}
	}
	return last, nil
}

// DeletePayload removes a payload, if it exists.
func (st Store) DeletePayload(ctx context.Context, name string) error {
	p, err := st.Payload(ctx, name)
	if errors.Is(err, ErrNoKey) {
		return nil
	}
	if err != nil {
		return err
	}
	// The description first: a payload that is found has all its parts.
	if err := st.Purge(ctx, payloadStream, objectSubject(subjects.ObjectPayloads, name)); err != nil {
		return err
	}
	return st.Purge(ctx, payloadStream, payloadParts(p.info.NUID))
}

// payloadOwner is the token of an account in the subjects of its parts.
func payloadOwner(account subjects.SessionID) string {
	if token, err := subjects.EncodeToken(string(account)); err == nil {
		return token
	}
	return "-" // of all sessions that were not created
}

// PayloadsUse is the usage of the store of payloads, in bytes.
type PayloadsUse struct {
	Mine      int64 // payloads of one account; incomplete ones count as whole
	Used, Max int64
}

// PayloadsUse returns the usage of the store of payloads, and the part of one account.
func (st Store) PayloadsUse(ctx context.Context, account subjects.SessionID) (u PayloadsUse, err error) {
	info, err := st.Info(ctx, payloadStream, payloadParts(payloadOwner(account)+".*"))
	if err != nil {
		return u, err
	}
	for _, parts := range info.State.Subjects {
		u.Mine += int64(parts) * pieceBytes //nolint:gosec // fewer than 2^31
	}
	u.Used, u.Max = int64(info.State.Bytes), info.Config.MaxBytes //nolint:gosec // fewer than 2^63
	return u, nil
}

// ErrPayloadsFull refuses what the payload store has no room for.
func ErrPayloadsFull(why string) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "the payload store is full (%s): %w; wait until payloads are read or expire, or give it more room (MESH_PAYLOADS_MAX)", why, ErrFull).
		WithOrigin(toolmesh.OriginMesh).WithDetail("limit", "payloads_max").WithRetryable(false)
}

// DropChunks removes the chunks of a session that is over, if they are of its epoch. over
// says whether that is still so: chunks of the next session of its name stay.
func (st Store) DropChunks(ctx context.Context, session subjects.SessionID, epoch string, over func() bool) error {
	subject, err := subjects.SessionChunks(session)
	if err != nil {
		return fmt.Errorf("remove the chunks of session %s: %w", session, err)
	}
	last, err := st.latest(ctx, subjects.StreamChunks, subject)
	if err != nil {
		return apiError("remove the chunks of session "+string(session), err)
	}
	if last == nil || last.Header.Get(codec.HeaderEpoch) != epoch || !over() {
		return nil
	}
	return st.purge(ctx, subjects.StreamChunks, subject, last.Seq+1)
}

// storeError is the error in JetStream's answer to a request or a publish; nil for none.
func storeError(m *nats.Msg) error {
	if bus.NoResponders(m) {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the payload store does not exist, or has no leader: it needs JetStream").WithOrigin(toolmesh.OriginMesh)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(m.Data, &answer); {
	case err != nil:
		return toolmesh.Errorf(toolmesh.CodeProtocolError, "read an answer of the object store: %w", err).WithOrigin(toolmesh.OriginMesh)
	case answer.Error == nil:
		return nil
	case Full(answer.Error):
		return ErrPayloadsFull(answer.Error.Description).WithDetail("err_code", answer.Error.ErrorCode)
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "the payload store refused: %s", answer.Error.Description).
		WithOrigin(toolmesh.OriginMesh).WithDetail("err_code", answer.Error.ErrorCode)
}

// Upload stores one payload, piece by piece. Write is for one goroutine; the other methods may
// be called from any. Finish it or drop it.
type Upload struct {
	st     Store
	name   string
	nuid   string // <owner>.<uuid>
	stream string
	parts  string // their subject
	inbox  *bus.Inbox
	sum    hash.Hash // nil: its sender says the digest

	mu      sync.Mutex // guards the fields below
	size    int64
	sent    int
	open    map[int]func(error) // by number: called once the piece is stored or refused
	err     error
	heard   time.Time
	changed chan struct{} // capacity 1
}

// NewUpload begins to store a payload under a name, for an account. With summed its digest is
// computed, else [Upload.Finish] takes it.
func (st Store) NewUpload(name string, account subjects.SessionID, summed bool) (*Upload, error) {
	id := payloadOwner(account) + "." + uuid.NewString()
	u := &Upload{st: st, name: name, nuid: id, stream: payloadStream, parts: payloadParts(id)}
	if summed {
		u.sum = sha256.New()
	}
	return u, u.begin()
}

func (u *Upload) begin() (err error) {
	u.heard, u.changed, u.open = time.Now(), make(chan struct{}, 1), make(map[int]func(error))
	u.inbox, err = u.st.Open(u.deliver)
	return err
}

// partsAhead is how many parts are sent before the store has acknowledged them.
const partsAhead = 8

// StoreParts stores data as the parts of an object without a description, for [Store.CopyParts], and
// returns how many there are. The id must be a new one. The error is [ErrFull] or unavailable.
func (st Store) StoreParts(ctx context.Context, bucket, id string, data []byte) (parts int, err error) {
	u := &Upload{st: st, stream: subjects.ObjectStream(bucket), parts: subjects.ObjectParts(bucket) + id}
	if err := u.begin(); err != nil {
		return 0, err
	}
	for piece := range slices.Chunk(data, st.PieceBytes()) {
		if err = u.Write(piece, nil); err == nil {
			err = u.Wait(ctx, partsAhead)
		}
		if err != nil {
			break
		}
	}
	if err == nil {
		err = u.Wait(ctx, 0)
	}
	if err != nil {
		_ = u.Drop(context.WithoutCancel(ctx))
		return 0, err
	}
	u.inbox.Close()
	return u.sent, nil
}

// CopyParts writes the parts that [Store.StoreParts] has stored for an object of a bucket to w, and
// returns the digest of that. It waits for parts that the answering replica lacks; if they do not
// come, the error is unavailable. Above size bytes it ends.
func (st Store) CopyParts(ctx context.Context, bucket, id string, parts int, size int64, w io.Writer) (digest string, err error) {
	return st.copy(ctx, bucket, Object{Name: id, Size: size, info: jetstream.ObjectInfo{NUID: id, Chunks: uint32(parts)}}, w) //nolint:gosec // few
}

// Info describes a stream, with the number of messages of each subject that a filter covers.
// The stream's leader answers.
func (st Store) Info(ctx context.Context, stream, filter string) (info *jetstream.StreamInfo, err error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	s, err := st.JetStream().Stream(ctx, stream)
	if err == nil {
		info, err = s.Info(ctx, jetstream.WithSubjectFilter(filter))
	}
	if err != nil {
		return nil, apiError("read stream "+stream, err)
	}
	return info, nil
}

// deliver takes the acknowledgements.
func (u *Upload) deliver(m *nats.Msg, err error) {
	n := 0
	if err == nil {
		n, _ = strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
		err = storeError(m)
	}
	u.mu.Lock()
	u.heard = time.Now()
	stored := u.open[n]
	delete(u.open, n)
	if err != nil && u.err == nil {
		u.err = err
	}
	u.mu.Unlock()
	wake.Up(u.changed)
	if stored != nil {
		stored(err)
	}
}

// Size returns the number of bytes that were written, that of pieces which are not stored yet, and
// the time of the store's last answer.
func (u *Upload) Size() (n int64, open int, heard time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.size, len(u.open), u.heard
}

// Write sends a piece, of at most [Store.PieceBytes], and does not wait until it is stored: stored,
// which may be nil and must not block, is called then with the error of that. The piece may be used
// again. After an error nothing more is taken.
func (u *Upload) Write(piece []byte, stored func(error)) error {
	u.mu.Lock()
	if u.err != nil {
		defer u.mu.Unlock()
		return u.err
	}
	u.sent++
	u.size += int64(len(piece))
	n := u.sent
	u.open[n] = stored
	u.mu.Unlock()
	if u.sum != nil {
		u.sum.Write(piece)
	}
	if !u.st.Connected() {
		return bus.ErrDisconnected(nil)
	}
	err := u.st.Conn().PublishMsg(&nats.Msg{Subject: u.parts, Reply: u.inbox.Subject() + "." + strconv.Itoa(n), Data: piece})
	return bus.SendError(err, len(piece), u.st.MaxPayload())
}

// Wait waits until at most so many pieces are sent and not stored, or one was refused.
func (u *Upload) Wait(ctx context.Context, most int) error { return u.wait(ctx, most, false) }

// wait is Wait; with refused it also waits after the store has refused a piece.
func (u *Upload) wait(ctx context.Context, most int, refused bool) error {
	timer := time.NewTimer(payloadSilence)
	defer timer.Stop()
	for {
		u.mu.Lock()
		open, heard, err := len(u.open), u.heard, u.err
		u.mu.Unlock()
		if err != nil && !refused || open <= most {
			return err
		}
		select {
		case <-u.changed:
			timer.Reset(payloadSilence)
		case <-timer.C:
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "the object store has not answered since %v", heard.Format(time.TimeOnly)).WithOrigin(toolmesh.OriginMesh)
		case <-ctx.Done():
			return fmt.Errorf("store a payload: %w", context.Cause(ctx))
		}
	}
}

// Finish waits until all pieces are stored, and writes the description: from then on the payload
// can be read. Drop it after an error. digest is the sender's, and readers check it.
func (u *Upload) Finish(ctx context.Context, digest string) (Object, error) {
	var err error
	if u.sent == 0 { // parts count for the account
		err = u.Write(nil, nil)
	}
	if err == nil {
		err = u.Wait(ctx, 0)
	}
	if err != nil {
		return Object{}, err
	}
	if u.sum != nil {
		digest = codec.DigestText(u.sum.Sum(nil))
	}
	p := Object{Name: u.name, Digest: digest, Size: u.size}
	p.info = jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: u.name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: uint32(u.st.PieceBytes())}}, //nolint:gosec // half a megabyte
		Bucket:     subjects.ObjectPayloads, NUID: u.nuid, Size: uint64(u.size), Chunks: uint32(u.sent), Digest: p.Digest,        //nolint:gosec // never negative
	}
	ack, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	// A name belongs to one payload: its reference means no other one.
	_, err = u.st.describe(ack, subjects.ObjectPayloads, p)
	switch {
	case errors.Is(err, ErrConflict):
		return Object{}, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "a payload named %q exists already: use another name", u.name).WithOrigin(toolmesh.OriginMesh)
	case errors.Is(err, ErrFull):
		return Object{}, ErrPayloadsFull(err.Error())
	case err != nil:
		return Object{}, apiError("store a payload", err)
	}
	u.inbox.Close()
	return p, nil
}

// Drop removes the stored pieces of an upload that is not finished.
func (u *Upload) Drop(ctx context.Context) error {
	// A message in flight would be stored behind the purge.
	settled, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_ = u.wait(settled, 0, true)
	u.inbox.Close()
	return u.st.Purge(ctx, u.stream, u.parts)
}
