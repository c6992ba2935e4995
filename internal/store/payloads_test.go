package store_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/meshtest"
)

func upload(t *testing.T, b store.Store, name, value string) store.Object {
	t.Helper()
	u, err := b.NewUpload(name, "s", true)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Write([]byte(value), nil); err != nil {
		t.Fatal(err)
	}
	p, err := u.Finish(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A payload expires after the time in the docs.
func TestPayloadsExpire(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	ensure(t, b, nil)
	stream, err := b.JetStream().Stream(t.Context(), "OBJ_MESH_PAYLOADS")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	if config.MaxAge != 15*time.Minute || config.Discard != jetstream.DiscardNew || config.MaxBytes != store.DefaultPayloadsBytes {
		t.Errorf("kept %v, %v at %d bytes", config.MaxAge, config.Discard, config.MaxBytes)
	}
	config.MaxAge, config.Duplicates = time.Second, time.Second
	if _, err := b.JetStream().UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	upload(t, b, "s.x", "value")
	meshtest.Until(t, "it has expired", func() bool {
		_, err := b.Payload(t.Context(), "s.x")
		return errors.Is(err, store.ErrNoKey)
	})
}

// A name has one value: a reference never reads another one.
func TestPayloadNamesAreTakenOnce(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := open(t, top.Serve(t), nil)
		ensure(t, b, nil)
		first := upload(t, b, "s.x", "one")
		u, err := b.NewUpload("s.x", "s", true)
		if err != nil {
			t.Fatal(err)
		}
		if err := u.Write([]byte("two"), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := u.Finish(t.Context(), ""); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("the name again: %v", err)
		}
		if err := u.Drop(t.Context()); err != nil {
			t.Error(err)
		}
		if found, err := b.Payload(t.Context(), "s.x"); err != nil || found.Digest != first.Digest || found.Size != 3 {
			t.Errorf("%+v, %v", found, err)
		}
		if err := b.DeletePayload(t.Context(), "s.x"); err != nil {
			t.Error(err)
		}
		if err := b.DeletePayload(t.Context(), "s.x"); err != nil {
			t.Errorf("what is gone: %v", err)
		}
		upload(t, b, "s.x", "three")
	})
}

// A node that cannot write the description in time says that another one may: the caller's put begins
// anew there.
func TestPayloadWhoseDescriptionIsNotConfirmed(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	ensure(t, b, nil)
	u, err := b.NewUpload("s.x", "s", true)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Write([]byte("value"), nil); err != nil {
		t.Fatal(err)
	}
	if err := u.Wait(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	_, err = u.Finish(late, "")
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeUnavailable || !e.Retryable {
		t.Errorf("%v, want an unavailable that may be tried again", err)
	}
	if err := u.Drop(t.Context()); err != nil {
		t.Error(err)
	}
}

// The digest of a copy is that of the bytes that were written, not of more than these.
func TestPayloadOfMoreBytesThanItsDescriptionSays(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	ensure(t, b, nil)
	p := upload(t, b, "s.x", "value")
	p.Size--
	var out bytes.Buffer
	digest, err := b.CopyPayload(t.Context(), p, &out)
	if err != nil {
		t.Fatal(err)
	}
	if out.Len() > 0 || digest == p.Digest {
		t.Errorf("%d bytes were written, their digest is %s", out.Len(), digest)
	}
}
