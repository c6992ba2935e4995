package broker

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"
)

// Reserved is the number of bytes that the streams in a StoreDir reserve: a broker that starts
// there with a smaller MaxStore keeps them, and refuses every other stream. It reads nats-server's
// own files; an unreadable one counts as 0. No broker need run there.
func Reserved(storeDir string) int64 {
	files, err := filepath.Glob(filepath.Join(storeDir, server.JetStreamStoreDir, "*", "streams", "*", server.JetStreamMetaFile))
	if err != nil {
		return 0
	}
	var sum int64
	for _, name := range files {
		data, err := os.ReadFile(name)
		var config server.StreamConfig
		if err != nil || json.Unmarshal(data, &config) != nil || config.MaxBytes <= 0 {
			continue
		}
		if config.MaxBytes > math.MaxInt64-sum {
			return math.MaxInt64
		}
		sum += config.MaxBytes
	}
	return sum
}
