package client

import "time"

// A minute is too long for a test; nothing here cuts a stream off for so long without meaning to.
func init() { streamAway = 10 * time.Second }
