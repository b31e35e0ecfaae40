job "job-periodic-crons" {
  type = "sysbatch"
  periodic {
    crons = ["0 1 * * *", "@daily"]
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
