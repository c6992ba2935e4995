package subjects

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrInvalid is wrapped by every error of this package: a name that cannot be
// a token, a token that is not the one right form of its name, or a subject that is not the
// mesh's. On the wire it becomes invalid_request.
var ErrInvalid = errors.New("invalid name")

const (
	maxToken      = 64
	encodedPrefix = "x--"
	hashedPrefix  = "x--h-"
	hashedLen     = len(hashedPrefix) + 26
)

var b32 = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// plainToken reports whether s is a token in itself: 1 to 64 of [A-Za-z0-9_-],
// not beginning with "x--".
func plainToken(s string) bool {
	if len(s) == 0 || len(s) > maxToken || strings.HasPrefix(s, encodedPrefix) {
		return false
	}
	for i := 0; i < len(s); i++ {
		if !tokenByte(s[i]) {
			return false
		}
	}
	return true
}

func tokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// hashedToken reports whether s is "x--h-" and the canonical base32hex of 16 bytes.
func hashedToken(s string) bool {
	if len(s) != hashedLen || !strings.HasPrefix(s, hashedPrefix) {
		return false
	}
	raw, err := b32.DecodeString(s[len(hashedPrefix):])
	return err == nil && len(raw) == 16 && b32.EncodeToString(raw) == s[len(hashedPrefix):]
}

// EncodeToken returns the subject token of a name. A name of the token alphabet is its own token,
// others are encoded as base32hex behind "x--", or hashed behind "x--h-" above 64 characters. A
// hashed token is its own token. Empty names and names that are not UTF-8 are refused.
func EncodeToken(name string) (string, error) {
	if plainToken(name) || hashedToken(name) {
		return name, nil
	}
	if name == "" {
		return "", fmt.Errorf("%w: a name cannot be empty", ErrInvalid)
	}
	if !utf8.ValidString(name) {
		return "", fmt.Errorf("%w: %q is not UTF-8", ErrInvalid, name)
	}
	// A name of more than 64 characters never fits: its encoding is longer still.
	if n := len(encodedPrefix) + b32.EncodedLen(len(name)); n <= maxToken {
		return encodedPrefix + b32.EncodeToString([]byte(name)), nil
	}
	sum := sha256.Sum256([]byte(name))
	return hashedPrefix + b32.EncodeToString(sum[:16]), nil
}

// tokens returns the tokens of names, with dots between them.
func tokens(names ...string) (string, error) {
	var all []string
	for _, name := range names {
		token, err := EncodeToken(name)
		if err != nil {
			return "", err
		}
		all = append(all, token)
	}
	return strings.Join(all, "."), nil
}

// Encoded reports whether a text looks like the encoded form of a name.
func Encoded(text string) bool { return strings.HasPrefix(text, encodedPrefix) }

// DecodeToken returns the name behind a token; a hashed token is returned as it
// is. A token that [EncodeToken] would not have made is refused: it would be an
// alias that permissions do not see.
func DecodeToken(token string) (string, error) {
	if plainToken(token) {
		return token, nil
	}
	if !strings.HasPrefix(token, encodedPrefix) || len(token) > maxToken {
		return "", fmt.Errorf("%w: %q is not a token: 1 to %d of A-Z a-z 0-9 _ -", ErrInvalid, token, maxToken)
	}
	if hashedToken(token) {
		return token, nil
	}
	raw, err := b32.DecodeString(token[len(encodedPrefix):])
	if err != nil {
		return "", fmt.Errorf("%w: token %q does not decode", ErrInvalid, token)
	}
	if again, err := EncodeToken(string(raw)); err != nil || again != token {
		return "", fmt.Errorf("%w: token %q is not the one right form of its name", ErrInvalid, token)
	}
	return string(raw), nil
}

// IsHashed reports whether a decoded name is a hashed token, whose real name
// travels in a header.
func IsHashed(name string) bool { return hashedToken(name) }
