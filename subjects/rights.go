package subjects

import (
	"fmt"
	"strings"
)

// Rights are the subjects that a credential may use, in the form of the NATS
// server's permissions: patterns, and in Subscribe a pattern with a queue group
// behind a space. DenyPublish wins over Publish.
type Rights struct {
	Publish, DenyPublish []string
	Subscribe            []string
}

// Inbox prefixes, without the final dot: of clients that know of no session, of
// nodes, and of administrators. Callers cannot subscribe the last two.
const (
	SharedInbox = "_INBOX"
	InboxNode   = "_INBOX_mesh_node"
	InboxAdmin  = "_INBOX_mesh_admin"

	// MemberInboxes begins those of the mesh's members.
	MemberInboxes = SharedInbox + "_" + meshInbox
	meshInbox     = "mesh_"
)

// discovery is where NATS's service discovery is asked.
const discovery = "$SRV.>"

// CallerRights are those of a caller of one session (docs/protocol, section 2). shared adds the
// inbox of clients that know of no session: all that have it can read each other's answers, so it
// goes with [DefaultSession] of a mesh that admits callers without a key. [UserInfo] is not among
// them: the server answers it to any reply subject, even a key of a bucket (decision 066). No
// pattern in > may be written with *: NATS (2.15.2) does not find that by a subscription that ends
// in *, and a leaf node with these rights would not learn the subscribers.
func CallerRights(session SessionID, shared bool) (Rights, error) {
	token, err := callerToken(session)
	if err != nil {
		return Rights{}, err
	}
	r := Rights{
		Publish: []string{
			"tools." + token + ".>", "mesh.node.*.tools." + token + ".>", "mesh.node.*.batch." + token, "mesh.node.*.ctl." + token + ".>",
			"mesh.ctl." + token + ".>", "mesh.registry." + token + ".>", "mesh.replay." + token + ".>",
			"mesh.batch." + token, "mesh.task." + token + ".>", "mesh.payload." + token + ".>", "mesh.node.*.payload." + token + ".>", discovery,
		},
		Subscribe: []string{"mesh.live." + token + ".>", AllHeartbeats, "_INBOX_" + token + ".>"},
	}
	if shared {
		r.Subscribe = append(r.Subscribe, SharedInbox+".>")
	}
	return r, nil
}

// callerToken returns the token of a session that may have keys. The inboxes of a session whose name
// begins with "mesh_" may be those of nodes or administrators.
func callerToken(session SessionID) (string, error) {
	if strings.HasPrefix(string(session), meshInbox) {
		return "", fmt.Errorf("%w: session %q cannot have keys: the inboxes of nodes and administrators begin with %s, so no session's name with a key may; choose another name", ErrInvalid, session, meshInbox)
	}
	return EncodeToken(string(session))
}

// NarrowedRights are those of a caller that may call only some tools of a session: those of exact
// globs, and those of ids. It makes neither batches nor tasks, as the server would make their
// calls. It shares its inbox and the session's streams with the session's other keys.
func NarrowedRights(session SessionID, exact Globs, ids []ToolID) (Rights, error) {
	token, err := callerToken(session)
	if err != nil {
		return Rights{}, err
	}
	r := Rights{
		Publish: []string{
			"mesh.node.*.ctl." + token + ".>", "mesh.ctl." + token + ".>", "mesh.registry." + token + ".>", "mesh.replay." + token + ".>",
			"mesh.payload." + token + ".>", "mesh.node.*.payload." + token + ".>",
		},
		Subscribe: []string{"mesh.live." + token + ".>", AllHeartbeats, "_INBOX_" + token + ".>"},
	}
	add := func(pattern string) {
		r.Publish = append(r.Publish, "tools."+token+"."+pattern, "mesh.node.*.tools."+token+"."+pattern)
	}
	for _, glob := range exact {
		pattern, ok := globPattern(glob)
		if !ok {
			return Rights{}, fmt.Errorf("%w: no subject pattern means the tools %q: list their ids", ErrInvalid, glob)
		}
		add(pattern)
	}
	for _, id := range ids {
		pattern, err := encodeToolID(id)
		if err != nil {
			return Rights{}, err
		}
		add(pattern)
	}
	return r, nil
}

// NodeRights are those of agents, routers and services that serve any session. A node answers the
// inboxes of all sessions, which no pattern covers, so it may publish anything except requests that
// administer the mesh or that end or change its streams; it makes missing ones.
func NodeRights() Rights {
	r := Rights{
		Publish: []string{">"},
		DenyPublish: []string{
			AllAdmin, "mesh.node.*.admin.>",
			"$JS.API.STREAM.UPDATE.>", "$JS.API.STREAM.DELETE.>",
			"$JS.API.STREAM.SNAPSHOT.>", "$JS.API.STREAM.RESTORE.>", "$JS.API.STREAM.PEER.>",
			"$JS.API.STREAM.LEADER.>", "$JS.API.CONSUMER.LEADER.>", "$JS.API.META.>", "$JS.API.SERVER.>",
			"$JS.API.ACCOUNT.PURGE.>", "$JS.API.ACCOUNT.STREAM.>",
		},
		Subscribe: []string{
			"tools.> " + QueueGroup, AllRegistry + " " + QueueGroup, AllReplay, AllAdmin + " " + QueueGroup,
			AllBatches + " " + QueueGroup, AllTaskVerbs + " " + QueueGroup, AllPayloads + " " + QueueGroup, "mesh.node.*.payload.>", "mesh.node.*.batch.*", "mesh.node.*.lane.*", "mesh.node.*.tools.>", "mesh.node.*.ctl.>", "mesh.node.*.admin.>", AllCtl, "mesh.reg.>", AllHeartbeats,
			LiveTransform, discovery, InboxNode + ".>",
		},
	}
	streams := []string{KVStream(BucketIdem), KVStream(BucketLanes), KVStream(BucketTaskState), StreamTasks, StreamAudit}
	for _, bucket := range RegistryBuckets() {
		streams = append(streams, KVStream(bucket))
	}
	for _, stream := range streams {
		r.DenyPublish = append(r.DenyPublish, "$JS.API.STREAM.PURGE."+stream, "$JS.API.STREAM.MSG.DELETE."+stream)
	}
	r.DenyPublish = append(r.DenyPublish, "$JS.API.STREAM.MSG.DELETE."+StreamChunks) // they purge those of sessions that have ended
	return r
}

// InstallerRights are the rights that a process needs next to a node's to have agents install
// indexes. Nodes do not have them.
func InstallerRights() Rights { return Rights{Publish: []string{AllAdmin, "mesh.node.*.admin.>"}} }

// AdminRights are those of an administrator: all of the account.
func AdminRights() Rights { return Rights{Publish: []string{">"}, Subscribe: []string{">"}} }
