package clients

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// frame is a message of an exec session, either way.
type frame struct {
	// In base64.
	Stdout, Stderr struct{ Data []byte }
	Exited         bool
	Result         *struct {
		ExitCode int `json:"exit_code"`
	}
}

// TestB4AnotherWebSocketClientRunsCommands runs a command in a task by a client that is not the one of Nomad's package. (B4)
func TestB4AnotherWebSocketClientRunsCommands(t *testing.T) {
	us := begin(t)
	alloc := us.run(us.client(), service("entered", "", "exec sleep 600"))
	dial := func(token string) (*websocket.Conn, *http.Response, error) {
		query := url.Values{"task": {"t"}, "tty": {"false"}, "command": {`["/bin/sh","-c","cat; echo bad >&2; exit 7"]`}}
		return websocket.Dial(t.Context(), us.url("/v1/client/allocation/"+alloc.ID+"/exec?"+query.Encode()),
			&websocket.DialOptions{HTTPHeader: http.Header{"X-Nomad-Token": {token}}})
	}
	connection, _, err := dial(us.token)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.CloseNow()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	text := strings.Repeat("ü and more\n", 20_000)
	go func() {
		for piece := range slices.Chunk([]byte(text), 60_000) {
			message, err := json.Marshal(map[string]any{"stdin": map[string]any{"data": piece}})
			if err != nil || connection.Write(ctx, websocket.MessageText, message) != nil {
				return
			}
		}
		connection.Write(ctx, websocket.MessageText, []byte(`{"stdin":{"close":true}}`)) //nolint:errcheck // the reader says it
	}()
	var out, bad strings.Builder
	for {
		kind, message, err := connection.Read(ctx)
		if err != nil {
			t.Fatalf("%v after %d bytes", err, out.Len())
		}
		var got frame
		if err := json.Unmarshal(message, &got); err != nil || kind != websocket.MessageText {
			t.Fatalf("%v: %s", err, message)
		}
		out.Write(got.Stdout.Data)
		bad.Write(got.Stderr.Data)
		if got.Exited {
			if got.Result == nil || got.Result.ExitCode != 7 {
				t.Errorf("the end is %s", message)
			}
			break
		}
	}
	if out.String() != text || bad.String() != "bad\n" {
		t.Errorf("%d bytes of %d came back, and %q", out.Len(), len(text), bad.String())
	}
	if _, _, err := connection.Read(ctx); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("it is closed with %v", err)
	}

	_, response, err := dial("00000000-0000-0000-0000-000000000000")
	if err == nil || response == nil || response.StatusCode != http.StatusForbidden {
		t.Errorf("without a right: %v, %v", response, err)
	}
}
