# A periodic job runs once, at once.
# prints: backup done
# prints: the job is started once, now

job "backup" {
  type = "batch"

  periodic {
    crons            = ["15 3 * * *", "@weekly"]
    prohibit_overlap = true
    time_zone        = "Europe/Berlin"
  }

  group "backup" {
    task "dump" {
      driver = "exec"

      config {
        command = "/bin/echo"
        args    = ["backup done"]
      }
    }
  }
}
