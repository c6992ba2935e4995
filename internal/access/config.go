package access

import (
	"encoding/json"
	"strings"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh/subjects"
)

// keylessName is in place of the public key of the user for clients without a key, in 32 bytes. It is no public
// key, so no client can prove to have its other half, and the server does not ask for it.
const keylessName = "clients of the mesh without keys"

// CalloutQueue is the subject and queue group of the processes that answer a server's
// questions about keys.
const CalloutQueue = subjects.UserAuth + " " + subjects.QueueGroup

// Config is the part of a NATS server's configuration that admits keys, each with the rights of its
// role, and clients without a key with those of the caller. A leaf node without a key is refused,
// since it represents a whole site. For other keys the server asks the issuer, which may be nil;
// keys of the role answering answer for it.
func (k Keys) Config(issuer *Issuer, answering Role) (string, error) {
	encoded, err := nkeys.Encode(nkeys.PrefixByteUser, []byte(keylessName))
	if err != nil {
		return "", err
	}
	keyless := string(encoded)
	type user struct {
		Nkey        string          `json:"nkey"`
		Types       []string        `json:"allowed_connection_types,omitempty"`
		Permissions jwt.Permissions `json:"permissions"`
	}
	var authorization struct {
		Users   []user         `json:"users"`
		Callout map[string]any `json:"auth_callout,omitempty"`
	}
	for _, role := range Roles() {
		rights, err := role.rights(subjects.DefaultSession)
		if err != nil {
			return "", err
		}
		if issuer != nil && role == answering {
			rights.Subscribe = append(rights.Subscribe, CalloutQueue)
		}
		authorization.Users = append(authorization.Users, user{Nkey: k[role], Permissions: permissions(rights)})
		if role == Caller {
			authorization.Users = append(authorization.Users, user{keyless, []string{"STANDARD", "WEBSOCKET", "IN_PROCESS"}, permissions(rights)})
		}
	}
	if issuer != nil {
		authorization.Callout = map[string]any{"issuer": issuer.public, "auth_users": []string{k[Admin], k[Node], k[Caller], keyless}}
	}
	var b strings.Builder
	b.WriteString("authorization: ")
	written := json.NewEncoder(&b) // the server reads JSON as part of its configuration
	written.SetEscapeHTML(false)
	written.SetIndent("", "  ")
	err = written.Encode(authorization)
	b.WriteString("no_auth_user: " + keyless + "\n")
	return b.String(), err
}

// Template is the permissions of each role for users whose JWT holds their rights, in the form of
// its claims: admin, node, router and caller, which is of one session. The error is for an invalid
// name of a session.
func Template(session subjects.SessionID) (map[string]jwt.Permissions, error) {
	all := make(map[string]jwt.Permissions)
	for _, role := range Roles() {
		rights, err := role.rights(session)
		if err != nil {
			return nil, err
		}
		all[string(role)] = permissions(rights)
	}
	all["router"] = all[string(Node)]
	return all, nil
}

// rights are those of a role; callers are of a session.
func (r Role) rights(session subjects.SessionID) (subjects.Rights, error) {
	switch r {
	case Admin:
		return subjects.AdminRights(), nil
	case Node:
		return subjects.NodeRights(), nil
	}
	return subjects.CallerRights(session, session == subjects.DefaultSession)
}

// permissions converts rights to the form of a user's claims.
func permissions(r subjects.Rights) jwt.Permissions {
	return jwt.Permissions{Pub: jwt.Permission{Allow: r.Publish, Deny: r.DenyPublish}, Sub: jwt.Permission{Allow: r.Subscribe}}
}
