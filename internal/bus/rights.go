package bus

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// rightsTimeout bounds each question about rights.
const rightsTimeout = 2 * time.Second

// MayHear reports whether a connection may subscribe a subject, with a queue group
// behind a space if it is to be in one.
func MayHear(nc *nats.Conn, subject string) bool {
	subject, queue, _ := strings.Cut(subject, " ")
	sub, err := nc.QueueSubscribeSync(subject, queue)
	if err != nil {
		return false
	}
	defer func() { _ = sub.Unsubscribe() }()
	// The broker's refusal comes before the answer to the ping behind the request.
	return nc.FlushTimeout(rightsTimeout) == nil && !errors.Is(nc.LastError(), nats.ErrPermissionViolation)
}

// CheckRights returns permission_denied, naming all missing rights, if the broker does not give
// this connection the rights that it needs. what begins the message and names the key.
// DenyPublish is not read. If the broker does not tell the rights it only tries the
// subscriptions. A silent broker passes: later operations will fail.
func (b *Bus) CheckRights(ctx context.Context, what string, need subjects.Rights) error {
	ctx, cancel := context.WithTimeout(ctx, rightsTimeout)
	defer cancel()
	var missing []string
	m, err := b.Request(ctx, nats.NewMsg(subjects.UserInfo))
	switch {
	case toolmesh.CodeOf(err) == toolmesh.CodePermissionDenied:
		for _, subject := range need.Subscribe {
			if !MayHear(b.nc, subject) {
				missing = append(missing, "subscribe "+subject)
			}
		}
	case err != nil:
		return nil
	default:
		var info struct {
			Data struct {
				Permissions struct{ Publish, Subscribe *permission }
			}
		}
		if err := json.Unmarshal(m.Data, &info); err != nil {
			return nil
		}
		missing = append(info.Data.Permissions.Publish.missing("publish ", need.Publish),
			info.Data.Permissions.Subscribe.missing("subscribe ", need.Subscribe)...)
	}
	if len(missing) == 0 {
		return nil
	}
	return toolmesh.Errorf(toolmesh.CodePermissionDenied, "the broker does not let this connection %s (docs/operations/nats.md); it may not %s",
		what, strings.Join(missing, ", ")).WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
}

// permission is the server's list for one direction; nil for all subjects.
type permission struct{ Allow, Deny []string }

func (p *permission) missing(what string, need []string) []string {
	var missing []string
	for _, n := range need {
		allowed := p == nil || len(p.Allow) == 0 || slices.ContainsFunc(p.Allow, func(allow string) bool { return covers(allow, n) })
		if !allowed || p != nil && slices.ContainsFunc(p.Deny, func(deny string) bool { return subjects.Overlap(deny, n) }) {
			missing = append(missing, what+n)
		}
	}
	return missing
}

// covers reports whether a pattern matches every subject that another one does; one
// with a queue group is for that group alone.
func covers(pattern, other string) bool {
	pattern, queue, _ := strings.Cut(pattern, " ")
	other, group, _ := strings.Cut(other, " ")
	if queue != "" && queue != group {
		return false
	}
	p, o := strings.Split(pattern, "."), strings.Split(other, ".")
	for i, token := range p {
		switch {
		case i == len(o):
			return false
		case token == ">":
			return true
		case o[i] == ">" || token != "*" && token != o[i]:
			return false
		}
	}
	return len(p) == len(o)
}
