package access

import (
	"fmt"
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
	keyless, err := nkeys.Encode(nkeys.PrefixByteUser, []byte(keylessName))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("authorization {\n  users: [\n")
	for _, role := range Roles() {
		rights, err := role.rights()
		if err != nil {
			return "", err
		}
		if issuer != nil && role == answering {
			rights.Subscribe = append(rights.Subscribe, CalloutQueue)
		}
		fmt.Fprintf(&b, "    { nkey: %s, permissions: {\n%s    } }\n", k[role], permissions(rights, "      "))
		if role == Caller {
			fmt.Fprintf(&b, "    { nkey: %s, allowed_connection_types: [STANDARD, WEBSOCKET, IN_PROCESS], permissions: {\n%s    } }\n", keyless, permissions(rights, "      "))
		}
	}
	b.WriteString("  ]\n")
	if issuer != nil {
		fmt.Fprintf(&b, "  auth_callout: { issuer: %s, auth_users: [%s, %s, %s, %s] }\n", issuer.public, k[Admin], k[Node], k[Caller], keyless)
	}
	fmt.Fprintf(&b, "}\nno_auth_user: %s\n", keyless)
	return b.String(), nil
}

// Template is the permissions of each role for users whose JWT holds their rights, in the form of
// its claims: admin, node, router and caller, which is of one session. The error is for an invalid
// name of a session.
func Template(session subjects.SessionID) (map[string]jwt.Permissions, error) {
	caller, err := subjects.CallerRights(session, session == subjects.DefaultSession)
	if err != nil {
		return nil, err
	}
	all := make(map[string]jwt.Permissions)
	for name, r := range map[string]subjects.Rights{
		string(Admin): subjects.AdminRights(), string(Node): subjects.NodeRights(), "router": subjects.NodeRights(), string(Caller): caller,
	} {
		all[name] = jwt.Permissions{
			Pub: jwt.Permission{Allow: r.Publish, Deny: r.DenyPublish}, Sub: jwt.Permission{Allow: r.Subscribe},
		}
	}
	return all, nil
}

func (r Role) rights() (subjects.Rights, error) {
	switch r {
	case Admin:
		return subjects.AdminRights(), nil
	case Node:
		return subjects.NodeRights(), nil
	}
	return subjects.CallerRights(subjects.DefaultSession, true)
}

// permissions are the lines of a user's permissions.
func permissions(r subjects.Rights, indent string) string {
	var b strings.Builder
	list := func(kind string, patterns []string) {
		if len(patterns) == 0 {
			return
		}
		fmt.Fprintf(&b, "%s  %s: [\n", indent, kind)
		for _, p := range patterns {
			fmt.Fprintf(&b, "%s    %q\n", indent, p)
		}
		fmt.Fprintf(&b, "%s  ]\n", indent)
	}
	b.WriteString(indent + "publish: {\n")
	list("allow", r.Publish)
	list("deny", r.DenyPublish)
	b.WriteString(indent + "}\n" + indent + "subscribe: {\n")
	list("allow", r.Subscribe)
	b.WriteString(indent + "}\n")
	return b.String()
}
