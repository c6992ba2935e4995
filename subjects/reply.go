package subjects

import "strings"

// Prefixes of reply subjects that NATS itself makes: across accounts, and
// across gateways, where two hashes and the original reply follow.
const (
	accountReply = "_R_."
	gatewayReply = "_GR_."

	// gatewayHash is the length of one of a gateway's hashes, gatewayHashes that
	// of both with their dots.
	gatewayHash   = 6
	gatewayHashes = 2 * (gatewayHash + 1)
)

// ReplyAllowed reports whether a serving side may answer to reply. NATS does
// not check a reply subject against the sender's rights, so a node that answers
// anywhere acts with its own rights for any caller: it could be made to overwrite
// a lease or delete a stream. Only inboxes are answered: "_INBOX.", the session's own
// "_INBOX_<session>.", the mesh's "_INBOX_mesh_", and the replies that the
// broker maps across accounts ("_R_.") and gateways ("_GR_.", whose original
// reply is held to the same rule). With session credentials the shared
// "_INBOX." is not accepted. session is the one of the request's subject, empty
// where the subject has none.
func ReplyAllowed(reply string, session SessionID, sessionCredentials bool) bool {
	if strings.ContainsAny(reply, "*> \t\r\n") {
		return false
	}
	if rest, ok := strings.CutPrefix(reply, gatewayReply); ok {
		// The broker cuts by length, not at the dots: a prefix of another length
		// would end somewhere else than where we looked.
		if len(rest) <= gatewayHashes || rest[gatewayHash] != '.' || rest[gatewayHashes-1] != '.' {
			return false
		}
		inner := rest[gatewayHashes:]
		return !strings.HasPrefix(inner, gatewayReply) && ReplyAllowed(inner, session, sessionCredentials)
	}
	if rest, ok := strings.CutPrefix(reply, accountReply); ok {
		return rest != ""
	}
	if rest, ok := strings.CutPrefix(reply, "_INBOX."); ok {
		return rest != "" && !sessionCredentials
	}
	rest, ok := strings.CutPrefix(reply, "_INBOX_")
	if !ok {
		return false
	}
	if after, ok := strings.CutPrefix(rest, meshInbox); ok && after != "" {
		return true
	}
	if session == "" {
		return false
	}
	token, err := EncodeToken(string(session))
	if err != nil {
		return false
	}
	after, ok := strings.CutPrefix(rest, token)
	return ok && len(after) > 1 && after[0] == '.'
}
