# An init reaps what the command leaves behind.
# prints: 0 zombies, and pid 1 is init

job "forks" {
  type = "batch"

  group "forks" {
    task "forks" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          for i in 1 2 3; do (sleep 0.1 &) ; done
          sleep 0.5
          zombies=$(cat /proc/[0-9]*/stat | grep -c ') Z ')
          echo $zombies zombies, and pid 1 is $(cat /proc/1/comm)
        EOF
        ]
        init = true
      }
    }
  }
}
