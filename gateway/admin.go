package gateway

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// showCall answers GET /v1/calls/{rpc_id}.
func (q *request) showCall() (any, error) {
	rpc := subjects.RPCID(q.r.PathValue("rpc_id"))
	at, err := q.c.Running(q.ctx, rpc)
	return object{"rpc_id": rpc, "state": "running", "tool": at.Tool, "node": at.Node}, err
}

// cancelCall answers DELETE /v1/calls/{rpc_id}.
func (q *request) cancelCall() (any, error) {
	rpc := subjects.RPCID(q.r.PathValue("rpc_id"))
	cancelled, err := q.c.Cancel(q.ctx, rpc)
	if err == nil && !cancelled {
		err = refused(toolmesh.CodeNotFound, "no node runs call %q in session %q: it has ended, or it has another id or session", rpc, q.c.Session())
	}
	return object{"cancelled": true}, err
}

// listTasks answers GET /v1/tasks.
func (q *request) listTasks() (any, error) {
	state := codec.TaskState(q.r.URL.Query().Get("state"))
	if state != "" && !slices.Contains(codec.TaskStates(), state) {
		return nil, refused(toolmesh.CodeInvalidRequest, "state is %q: it is one of %v", state, codec.TaskStates())
	}
	all, err := q.c.Tasks(q.ctx, state)
	return object{"tasks": append([]client.TaskInfo{}, all...)}, err
}

// ofTask handles GET and DELETE /v1/tasks/{id} with do.
func ofTask(do func(*client.Task, context.Context) (*client.TaskInfo, error)) handler {
	return func(q *request) (any, error) {
		info, err := do(q.c.Task(subjects.RPCID(q.r.PathValue("id"))), q.ctx)
		if err != nil {
			return nil, err
		}
		info.Result = withHrefs(info.Result)
		return info, nil
	}
}

// listOf handles GET /v1/nodes, /v1/sessions and /v1/indexes. The answer is that of the command with --json.
func listOf[T any](plural string, of func(*request, *registry.View) ([]T, error), otherwise func(*request) ([]T, error)) handler {
	return func(q *request) (any, error) {
		var all []T
		err := inventory.MayAsk(q.ctx, q.l.bus, "")
		switch {
		case err == nil:
			var view *registry.View
			if view, err = registry.OpenView(q.ctx, q.l.bus, &registry.ViewOptions{Logger: q.g.log}); err == nil {
				defer view.Close()
				all, err = of(q, view)
			}
		case otherwise != nil:
			all, err = otherwise(q)
		default:
			err = q.explainAdmin(err)
		}
		return map[string][]T{plural: all}, err
	}
}

// explainAdmin says in a refusal that the request needs an administrator's token, instead of naming the subject.
func (q *request) explainAdmin(err error) error {
	if err == nil || toolmesh.CodeOf(err) != toolmesh.CodePermissionDenied || q.l.ofAdmin {
		return err
	}
	return refused(toolmesh.CodePermissionDenied, "%s %s takes an administrator's token: the content of keys/admin.nk", q.r.Method, q.r.URL.Path)
}

func sessionsOf(_ *request, view *registry.View) ([]inventory.Session, error) {
	return inventory.Sessions(view), nil
}

func nodesOf(q *request, view *registry.View) ([]inventory.Node, error) {
	return inventory.Hear(q.ctx, q.l.bus, inventory.Nodes(view))
}

func indexesOf(q *request, view *registry.View) ([]inventory.Index, error) {
	return inventory.Declared(q.ctx, q.l.bus, inventory.Indexes(view, q.c.Session()))
}

// visibleIndexes returns the indexes of the tools that the token may use.
func visibleIndexes(q *request) ([]inventory.Index, error) {
	all, err := inventory.Visible(q.ctx, q.c)
	for i := range all {
		all[i].Tools = slices.DeleteFunc(all[i].Tools, func(t inventory.IndexTool) bool { return !q.l.key.Tools.Match(t.ID) })
	}
	return slices.DeleteFunc(all, func(x inventory.Index) bool { return len(x.Tools) == 0 }), err
}

// install handles POST /v1/indexes: an agent installs an index and reports its steps as events.
func (q *request) install() (any, error) {
	var in struct {
		Source string             `json:"source"`
		Name   subjects.IndexName `json:"name"`
		Rev    string             `json:"rev"`
		Env    map[string]string  `json:"env"`
	}
	const example = `{"source":"owner/repo or a URL","name":"NAME","rev":"REV","env":{"K":"V"}}`
	if err := q.read(&in, example); err != nil {
		return nil, err
	}
	if in.Source == "" {
		return nil, refused(toolmesh.CodeInvalidRequest, "source is missing: the body has the form %s", example)
	}
	if source, err := index.Parse(in.Source); err == nil && source.Kind != index.KindGit {
		return nil, refused(toolmesh.CodeInvalidRequest, "source is %q, a path: write a repository (owner/repo) or its URL; mesh install installs folders", in.Source)
	}
	release, err := q.l.take(streamsOpen, 1)
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, cancel := context.WithCancel(q.ctx)
	defer cancel()
	asked := deploy.Request{Source: in.Source, Name: in.Name, Rev: in.Rev, Env: in.Env, Session: subjects.SessionID(q.r.Header.Get("Mesh-Session"))}
	out := &streamWriter{w: q.w, in: new(call), leave: cancel}
	var done deploy.Line
	err = out.during(func() error {
		for raw, err := range deploy.Install(ctx, q.l.bus, asked, nil) {
			var line deploy.Line
			switch {
			case err != nil:
				return err
			case json.Unmarshal(raw, &line) != nil:
			case line.Step != "":
				out.write("event: step\n", oneLine(raw))
			default: // many tools need several lines
				line.Tools = append(done.Tools, line.Tools...)
				line.Unavailable = append(done.Unavailable, line.Unavailable...)
				line.Warnings = append(done.Warnings, line.Warnings...)
				done = line
			}
		}
		inventory.Listed(ctx, q.c, done.Tools)
		return nil
	})
	complete, _ := tool.MarshalPlain(done)
	out.end(q.explainAdmin(err), complete)
	return nil, nil
}
