job "job-lone-task" {
  task "lone" {
    driver = "raw_exec"
    config {
      command = "/bin/true"
    }
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
