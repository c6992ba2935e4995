package deploy

import (
	"encoding/base64"

	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
)

// Sign has a request for an install be of the holder of a key, the seed of a NATS user:
// it returns the headers that say so.
func Sign(owner nkeys.KeyPair, body []byte) (codec.Header, error) {
	public, err := owner.PublicKey()
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInternal, "read the owner's key: %w", err)
	}
	signature, err := owner.Sign(body)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInternal, "sign the request: %w", err)
	}
	return codec.Header{codec.HeaderOwner: {public}, codec.HeaderSignature: {base64.RawURLEncoding.EncodeToString(signature)}}, nil
}

// Signer returns the public key of the signer of an install request, empty without a signature. The
// error is invalid_request if the signature does not match the key.
func Signer(h codec.Header, body []byte) (owner string, err error) {
	owner = h.Get(codec.HeaderOwner)
	if owner == "" {
		return "", nil
	}
	var key nkeys.KeyPair
	signature, err := base64.RawURLEncoding.DecodeString(h.Get(codec.HeaderSignature))
	if err == nil {
		key, err = nkeys.FromPublicKey(owner)
	}
	if err == nil {
		err = key.Verify(body, signature)
	}
	if err != nil || !nkeys.IsValidPublicUserKey(owner) {
		return "", invalidRequest("the request is not signed by the key that %s names", codec.HeaderOwner)
	}
	return owner, nil
}
