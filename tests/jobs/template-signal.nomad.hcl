# A changed value sends a signal, and the task reads its file again.
# before: printf '{"color": "blue"}' > $DIR/kv.json
# args: --kv $DIR/kv.json
# meanwhile: grep -q 'now blue' $OUT && { printf '{"color": "green"}' > $DIR/new; mv $DIR/new $DIR/kv.json; grep -q 'reloaded green' $OUT; }
# never: Task restarting
# status: 143

job "color" {
  group "color" {
    task "color" {
      driver      = "exec"
      kill_signal = "SIGTERM"

      template {
        destination   = "local/color"
        data          = "{{ key \"color\" }}"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        splay         = "0s"
      }

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          trap 'exit 0' TERM
          trap 'echo reloaded $(cat local/color)' HUP
          echo now $(cat local/color)
          while :; do sleep 1 & wait; done
        EOF
        ]
      }
    }
  }
}
