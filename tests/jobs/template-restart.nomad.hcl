# A changed value restarts the task.
# before: printf '{"color": "blue"}' > $DIR/kv.json
# args: --kv $DIR/kv.json
# meanwhile: grep -q 'now blue' $OUT && { printf '{"color": "green"}' > $DIR/new; mv $DIR/new $DIR/kv.json; grep -q 'now green' $OUT; }
# prints: now green
# status: 143

job "color" {
  group "color" {
    task "color" {
      driver      = "exec"
      kill_signal = "SIGTERM"

      template {
        destination = "local/color"
        data        = "{{ key \"color\" }}"
        splay       = "0s"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' TERM; echo now $(cat local/color); while :; do sleep 1 & wait; done"]
      }
    }
  }
}
