# A changed value runs a script in the task.
# before: printf '{"color": "blue"}' > $DIR/kv.json
# args: --kv $DIR/kv.json
# meanwhile: grep -q 'now blue' $OUT && { printf '{"color": "green"}' > $DIR/new; mv $DIR/new $DIR/kv.json; grep -q 'script saw green' $OUT; }
# status: 143

job "color" {
  group "color" {
    task "color" {
      driver      = "exec"
      kill_signal = "SIGTERM"

      template {
        destination = "local/color"
        data        = "{{ key \"color\" }}"
        change_mode = "script"
        splay       = "0s"

        change_script {
          command       = "/bin/sh"
          args          = ["-c", "echo script saw $(cat local/color) > /alloc/seen"]
          timeout       = "10s"
          fail_on_error = true
        }
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'exit 0' TERM; echo now $(cat local/color); while :; do sleep 0.2; test -e /alloc/seen && cat /alloc/seen; done"]
      }
    }
  }
}
